/* Down a gradient g and along a direction M made orthogonal to it, system by system, for one floating point type.
   Included twice, after update_real.h. A system is a group of rows.

   With u = g / scale, the largest entry of a system made 1, so that no square under- or overflows,

       T = M - s1 u - s2 u,   s1 = <M, u> / <u, u>,   s2 = <M - s1 u, u> / <u, u>,   velocity = -alpha g + beta T:

   the second share takes away what rounding left of the first. Where g is zero, so is u, and T = M.

   backward    of a cotangent l, with s = s1 + s2 and c = beta <l, u> / <u, u>:
                   dM = beta l - c u,   dg = -alpha l - (s beta l + c (T - s u)) / scale,
                   dalpha = -<l, u> scale,    dbeta = <l, T>.

   Sums are taken row by row, and then over the rows of a system in their order, so that a system sums alike alone and
   in any batch, on any number of threads.
*/

typedef struct {
    REAL inverse, square, s1, s2; /* 1 / scale, <u, u>, the shares */
} NAME(Shares);

#define SYSTEM(i) (index ? index[i] : 0)

/* For each row: its largest entry, and with v = g / it the products <v, v> and <M, v>. */
CLONES static void NAME(velocity_dots)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, NAME(In) M, NAME(In) g, REAL *restrict rows)
{
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *gi = ROW(g, i), *Mi = ROW(M, i);
        REAL lane[LANES] = {0}, most = 0;
        ptrdiff_t m = 0;
        for (; m + LANES <= channels; m += LANES)
            SIMD
            for (int x = 0; x < LANES; x++) {
                const REAL size = gi[m + x] < 0 ? -gi[m + x] : gi[m + x];
                lane[x] = size > lane[x] ? size : lane[x];
            }
        for (; m < channels; m++) {
            const REAL size = gi[m] < 0 ? -gi[m] : gi[m];
            most = size > most ? size : most;
        }
        for (int x = 0; x < LANES; x++)
            most = lane[x] > most ? lane[x] : most;
        const REAL inverse = most < SMALLEST ? 0 : 1 / most;
        rows[3 * i] = most;
        rows[3 * i + 1] = NAME(scaled_dot)(channels, gi, inverse, gi, inverse);
        rows[3 * i + 2] = NAME(scaled_dot)(channels, Mi, 1, gi, inverse);
    }
}

static void NAME(velocity_shares)(
    ptrdiff_t rows, ptrdiff_t systems, const int64_t *index, const REAL *of_rows, NAME(Shares) *shares)
{
    memset(shares, 0, (size_t)systems * sizeof *shares);
    for (ptrdiff_t i = 0; i < rows; i++) {
        NAME(Shares) *own = shares + SYSTEM(i);
        own->inverse = of_rows[3 * i] > own->inverse ? of_rows[3 * i] : own->inverse;
    }
    for (ptrdiff_t k = 0; k < systems; k++)
        shares[k].inverse = shares[k].inverse < SMALLEST ? 0 : 1 / shares[k].inverse;
    for (ptrdiff_t i = 0; i < rows; i++) {
        NAME(Shares) *own = shares + SYSTEM(i);
        const REAL size = of_rows[3 * i] * own->inverse;
        own->square += size * size * of_rows[3 * i + 1];
        own->s1 += size * of_rows[3 * i + 2];
    }
    for (ptrdiff_t k = 0; k < systems; k++) {
        shares[k].square = shares[k].square < 1 ? 1 : shares[k].square; /* it has an entry of 1, unless g is zero */
        shares[k].s1 /= shares[k].square;
    }
}

/* For each row: <M - s1 u, u>. */
CLONES static void NAME(velocity_rest)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) M, NAME(In) g,
    const int64_t *index, const NAME(Shares) *shares, REAL *restrict rows)
{
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *gi = ROW(g, i), *Mi = ROW(M, i);
        const NAME(Shares) own = shares[SYSTEM(i)];
        REAL *restrict u = room, *restrict rest = u + channels;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            u[m] = gi[m] * own.inverse;
            rest[m] = Mi[m] - own.s1 * u[m];
        }
        rows[i] = NAME(dot)(channels, rest, u);
    }
}

static void NAME(velocity_second_shares)(
    ptrdiff_t rows, ptrdiff_t systems, const int64_t *index, const REAL *of_rows, NAME(Shares) *shares)
{
    for (ptrdiff_t i = 0; i < rows; i++)
        shares[SYSTEM(i)].s2 += of_rows[i];
    for (ptrdiff_t k = 0; k < systems; k++)
        shares[k].s2 /= shares[k].square;
}

CLONES static void NAME(velocity_value)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, NAME(In) M, NAME(In) g, const REAL *alpha, const REAL *beta,
    const int64_t *index, const NAME(Shares) *shares, NAME(Out) velocity)
{
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *gi = ROW(g, i), *Mi = ROW(M, i);
        REAL *restrict out = ROW(velocity, i);
        const NAME(Shares) own = shares[SYSTEM(i)];
        const REAL down = alpha[SYSTEM(i)], along = beta[SYSTEM(i)];
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL u = gi[m] * own.inverse, rest = Mi[m] - own.s1 * u;
            out[m] = along * (rest - own.s2 * u) - down * gi[m];
        }
    }
}

/* For each row: <l, u> and <l, T>. */
CLONES static void NAME(velocity_products)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) M, NAME(In) g, NAME(In) l,
    const int64_t *index, const NAME(Shares) *shares, REAL *restrict rows)
{
    REAL *restrict u = room, *restrict T = u + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *gi = ROW(g, i), *Mi = ROW(M, i), *li = ROW(l, i);
        const NAME(Shares) own = shares[SYSTEM(i)];
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            u[m] = gi[m] * own.inverse;
            const REAL rest = Mi[m] - own.s1 * u[m];
            T[m] = rest - own.s2 * u[m];
        }
        rows[2 * i] = NAME(dot)(channels, li, u);
        rows[2 * i + 1] = NAME(dot)(channels, li, T);
    }
}

static void NAME(velocity_slopes)(
    ptrdiff_t rows, ptrdiff_t systems, const int64_t *index, const REAL *of_rows,
    const NAME(Shares) *shares, REAL *products, REAL *dalpha, REAL *dbeta)
{
    memset(products, 0, (size_t)systems * sizeof(REAL));
    memset(dbeta, 0, (size_t)systems * sizeof(REAL));
    for (ptrdiff_t i = 0; i < rows; i++) {
        products[SYSTEM(i)] += of_rows[2 * i];
        dbeta[SYSTEM(i)] += of_rows[2 * i + 1];
    }
    for (ptrdiff_t k = 0; k < systems; k++)
        dalpha[k] = shares[k].inverse == 0 ? 0 : -products[k] / shares[k].inverse;
}

CLONES static void NAME(velocity_backward)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, NAME(In) M, NAME(In) g, NAME(In) l, const REAL *alpha,
    const REAL *beta, const int64_t *index, const NAME(Shares) *shares, const REAL *products, NAME(Out) dM, NAME(Out) dg)
{
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *gi = ROW(g, i), *Mi = ROW(M, i), *li = ROW(l, i);
        REAL *restrict dMi = ROW(dM, i), *restrict dgi = ROW(dg, i);
        const NAME(Shares) own = shares[SYSTEM(i)];
        const REAL down = alpha[SYSTEM(i)], along = beta[SYSTEM(i)], s = own.s1 + own.s2;
        const REAL c = along * products[SYSTEM(i)] / own.square;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL u = gi[m] * own.inverse, T = Mi[m] - own.s1 * u - own.s2 * u, bl = along * li[m];
            dMi[m] = bl - c * u;
            dgi[m] = -down * li[m] - own.inverse * (s * bl + c * (T - s * u));
        }
    }
}

#undef SYSTEM
