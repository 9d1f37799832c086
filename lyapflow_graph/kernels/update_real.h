/* What happens at a node after its sums, for one floating point type. Included twice, after gated_real.h.

   Row by row, with D = den + CLOSED and silu(t) = t sigmoid(t):

       u = own + num / D,   x = (u - mean u) / sqrt(var u + EPSILON),   t = x weight + bias,   y = silu(t).

   The double backward is the derivative of the backward along (own', num', den', weight', bias'), with gy held: mixed
   derivatives commute. Sums over rows, for weight and bias, are left to the caller piece by piece.
*/

/* Sums of a row, in lanes that are added up at the end: an order that does not hold the processor up. */
static ALWAYS_INLINE REAL NAME(add_up)(const REAL *lane)
{
    REAL eight[8], four[4];
    SIMD
    for (int l = 0; l < 8; l++)
        eight[l] = lane[l] + lane[l + 8];
    SIMD
    for (int l = 0; l < 4; l++)
        four[l] = eight[l] + eight[l + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

static ALWAYS_INLINE REAL NAME(scaled_dot)(ptrdiff_t count, const REAL *x, REAL of_x, const REAL *y, REAL of_y)
{
    REAL lane[LANES] = {0};
    ptrdiff_t m = 0;
    for (; m + LANES <= count; m += LANES)
        SIMD
        for (int l = 0; l < LANES; l++)
            lane[l] += of_x * x[m + l] * (of_y * y[m + l]);
    for (; m < count; m++)
        lane[m % LANES] += of_x * x[m] * (of_y * y[m]);
    return NAME(add_up)(lane);
}

static ALWAYS_INLINE REAL NAME(dot)(ptrdiff_t count, const REAL *x, const REAL *y)
{
    return NAME(scaled_dot)(count, x, 1, y, 1);
}

static ALWAYS_INLINE REAL NAME(total)(ptrdiff_t count, const REAL *x)
{
    REAL lane[LANES] = {0};
    ptrdiff_t m = 0;
    for (; m + LANES <= count; m += LANES)
        SIMD
        for (int l = 0; l < LANES; l++)
            lane[l] += x[m + l];
    for (; m < count; m++)
        lane[m % LANES] += x[m];
    return NAME(add_up)(lane);
}

/* From u to x, in place; gives 1 / standard deviation. */
static ALWAYS_INLINE REAL NAME(normalise)(ptrdiff_t channels, REAL *restrict x)
{
    const REAL mean = NAME(total)(channels, x) / (REAL)channels;
    SIMD
    for (ptrdiff_t m = 0; m < channels; m++)
        x[m] -= mean;
    const REAL inverse = 1 / SQRT(NAME(dot)(channels, x, x) / (REAL)channels + (REAL)EPSILON);
    SIMD
    for (ptrdiff_t m = 0; m < channels; m++)
        x[m] *= inverse;
    return inverse;
}

CLONES static void NAME(update_forward)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) own, NAME(In) num, NAME(In) den,
    const REAL *weight, const REAL *bias, NAME(Out) y)
{
    REAL *restrict x = room;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *owni = ROW(own, i), *numi = ROW(num, i), *deni = ROW(den, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++)
            x[m] = owni[m] + numi[m] / (deni[m] + (REAL)CLOSED);
        NAME(normalise)(channels, x);
        REAL *restrict out = ROW(y, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL t = x[m] * weight[m] + bias[m];
            out[m] = t * NAME(sigmoid)(t);
        }
    }
}

CLONES static void NAME(update_backward)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) own, NAME(In) num, NAME(In) den,
    const REAL *weight, const REAL *bias, NAME(In) gy, NAME(Out) down, NAME(Out) dnum, NAME(Out) dden,
    REAL *restrict sums)
{
    REAL *restrict x = room, *restrict g = x + channels, *restrict over = g + channels;
    REAL *restrict dweight = sums, *restrict dbias = sums + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *owni = ROW(own, i), *numi = ROW(num, i), *deni = ROW(den, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            over[m] = 1 / (deni[m] + (REAL)CLOSED);
            x[m] = owni[m] + numi[m] * over[m];
        }
        const REAL inverse = NAME(normalise)(channels, x), *gyi = ROW(gy, i);
        REAL *restrict gu = ROW(down, i), *restrict dnumi = ROW(dnum, i), *restrict ddeni = ROW(dden, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t);
            const REAL gt = gyi[m] * (s + t * s * (1 - s));
            dweight[m] += gt * x[m];
            dbias[m] += gt;
            g[m] = gt * weight[m];
        }
        const REAL A = NAME(total)(channels, g) / (REAL)channels, B = NAME(dot)(channels, g, x) / (REAL)channels;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            gu[m] = inverse * (g[m] - A - x[m] * B);
            dnumi[m] = gu[m] * over[m];
            ddeni[m] = -gu[m] * over[m] * numi[m] * over[m];
        }
    }
}

CLONES static void NAME(update_double)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) own, NAME(In) num, NAME(In) den,
    const REAL *weight, const REAL *bias, NAME(In) gy, NAME(In) lown, NAME(In) lnum, NAME(In) lden,
    const REAL *lweight, const REAL *lbias, NAME(Out) dgy, NAME(Out) down, NAME(Out) dnum, NAME(Out) dden,
    REAL *restrict sums)
{
    REAL *restrict x = room, *restrict x_ = x + channels, *restrict g = x_ + channels, *restrict g_ = g + channels;
    REAL *restrict over = g_ + channels, *restrict dweight = sums, *restrict dbias = sums + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *owni = ROW(own, i), *numi = ROW(num, i), *deni = ROW(den, i);
        const REAL *lowni = ROW(lown, i), *lnumi = ROW(lnum, i), *ldeni = ROW(lden, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            over[m] = 1 / (deni[m] + (REAL)CLOSED);
            const REAL r = numi[m] * over[m];
            x[m] = owni[m] + r;
            x_[m] = lowni[m] + (lnumi[m] - r * ldeni[m]) * over[m];
        }
        const REAL inverse = NAME(normalise)(channels, x), *gyi = ROW(gy, i);
        const REAL mean = NAME(total)(channels, x_) / (REAL)channels, q = NAME(dot)(channels, x, x_) / (REAL)channels;
        REAL *restrict y_ = ROW(dgy, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            x_[m] = inverse * (x_[m] - mean - x[m] * q);
            const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t), slope = s * (1 - s), f1 = s + t * slope;
            const REAL t_ = x_[m] * weight[m] + x[m] * lweight[m] + lbias[m];
            const REAL gt = gyi[m] * f1, gt_ = gyi[m] * slope * (2 + t * (1 - 2 * s)) * t_;
            y_[m] = f1 * t_;
            g[m] = gt * weight[m];
            g_[m] = gt_ * weight[m] + gt * lweight[m];
            dweight[m] += gt_ * x[m] + gt * x_[m];
            dbias[m] += gt_;
        }
        const REAL A = NAME(total)(channels, g) / (REAL)channels, A_ = NAME(total)(channels, g_) / (REAL)channels;
        const REAL B = NAME(dot)(channels, g, x) / (REAL)channels;
        const REAL B_ = (NAME(dot)(channels, g_, x) + NAME(dot)(channels, g, x_)) / (REAL)channels;
        REAL *restrict downi = ROW(down, i), *restrict dnumi = ROW(dnum, i), *restrict ddeni = ROW(dden, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL gu = inverse * (g[m] - A - x[m] * B);
            const REAL gu_ = inverse * (g_[m] - A_ - x_[m] * B - x[m] * B_) - inverse * q * gu;
            const REAL r = numi[m] * over[m], r_ = (lnumi[m] - r * ldeni[m]) * over[m], shrink = ldeni[m] * over[m];
            downi[m] = gu_;
            dnumi[m] = (gu_ - gu * shrink) * over[m];
            ddeni[m] = (gu * r * shrink - gu_ * r - gu * r_) * over[m];
        }
    }
}

/* silu(x) alone, its first and second derivative: `order` of them. */
CLONES static void NAME(silu)(
    int order, ptrdiff_t first, ptrdiff_t last, const REAL *x, const REAL *g, const REAL *l, REAL *restrict out,
    REAL *restrict other)
{
    if (order == 0)
        SIMD
        for (ptrdiff_t m = first; m < last; m++)
            out[m] = x[m] * NAME(sigmoid)(x[m]);
    else if (order == 1)
        SIMD
        for (ptrdiff_t m = first; m < last; m++) {
            const REAL s = NAME(sigmoid)(x[m]);
            out[m] = g[m] * (s + x[m] * s * (1 - s));
        }
    else
        SIMD
        for (ptrdiff_t m = first; m < last; m++) {
            const REAL s = NAME(sigmoid)(x[m]), slope = s * (1 - s);
            out[m] = l[m] * (s + x[m] * slope);
            other[m] = g[m] * l[m] * slope * (2 + x[m] * (1 - 2 * s));
        }
}
