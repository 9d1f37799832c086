/* Gated sums for one floating point type. Included twice, with REAL, NAME(x) and the constants of exp defined.

   For an edge from j to i, with s the sigmoid of z = k_i + q_j + c_ij,

       num_i = sum_j s v_j,    den_i = sum_j s,

   channel by channel. Everything else here is a derivative of these two:

   backward         of F = <gn, num> + <gd, den>, with a = gn_i v_j + gd_i and s' = s (1 - s):
                        dk_i = sum_j a s',   dq_j = sum_i a s',   dc_ij = a s',   dv_j = sum_i s gn_i;
   double backward  of <lk, dk> + <lq, dq> + <lv, dv> + <lc, dc>, with w = lk_i + lq_j + lc_ij and s'' = s' (1 - 2 s):
                        dgn_i = sum_j w s' v_j + s lv_j,    dgd_i = sum_j w s',
                        y = w a s'' + gn_i lv_j s',   dk_i = sum_j y,   dq_j = sum_i y,   dc_ij = y,
                        dv_j = sum_i w s' gn_i.

   A row of the result is computed by one thread, over its edges in their order, so that it does not depend on the
   number of threads. Channels are taken in blocks whose sums stay in registers or the first cache.
*/

typedef struct {
    const REAL *at;
    ptrdiff_t stride; /* from row to row */
} NAME(In);

typedef struct {
    REAL *at;
    ptrdiff_t stride;
} NAME(Out);

static ALWAYS_INLINE REAL NAME(sigmoid)(REAL z)
{
    /* exp(-z) = 2^n exp(r) with |r| <= log(2) / 2, then a polynomial. Comparisons let a NaN through. */
    REAL x = -z;
    const int closed = x > EXP_HIGH;
    x = closed ? EXP_HIGH : x;
    x = x < -EXP_HIGH ? -EXP_HIGH : x;
    REAL shifted = x * LOG2E + ROUNDER;
    REAL n = shifted - ROUNDER;
    REAL r = x - n * LN2_HIGH;
    r = r - n * LN2_LOW;
    REAL p = POLYNOMIAL(r);
    union { REAL real; BITS bits; } power, whole;
    whole.real = shifted;
    power.bits = (whole.bits + (BITS)BIAS) << MANTISSA; /* the low bits of `shifted` are those of n */
    return closed ? 0 : 1 / (1 + p * power.real); /* and not merely small: a flat energy has a gradient of zero */
}

/* Rows of other nodes lie anywhere: ask for them some edges ahead, or the loop waits for memory at every edge. */
static ALWAYS_INLINE void NAME(fetch)(const REAL *row, ptrdiff_t width)
{
    for (ptrdiff_t x = 0; x < width; x += (ptrdiff_t)(LINE / sizeof(REAL)))
        PREFETCH(row + x);
}

CLONES static void NAME(forward_rows)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, const int32_t *ptr, const int32_t *other, const int32_t *edge,
    NAME(In) k, NAME(In) q, NAME(In) v, NAME(In) c, NAME(Out) num, NAME(Out) den)
{
    const int32_t end = ptr[last]; /* of the edges that are worked on here */
    for (ptrdiff_t i = first; i < last; i++)
        for (ptrdiff_t from = 0; from < channels; from += BLOCK) {
            const ptrdiff_t width = channels - from < BLOCK ? channels - from : BLOCK;
            REAL total[BLOCK] = {0}, weight[BLOCK] = {0};
            const REAL *ki = ROW(k, i) + from;
            for (int32_t e = ptr[i]; e < ptr[i + 1]; e++) {
                if (e + AHEAD < end) {
                    const ptrdiff_t next = other[e + AHEAD];
                    NAME(fetch)(ROW(q, next) + from, width);
                    NAME(fetch)(ROW(v, next) + from, width);
                }
                const REAL *qj = ROW(q, other[e]) + from, *vj = ROW(v, other[e]) + from;
                const REAL *ce = c.at ? ROW(c, edge[e]) + from : ZEROS;
                SIMD
                for (ptrdiff_t x = 0; x < width; x++) {
                    REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]);
                    total[x] += s * vj[x];
                    weight[x] += s;
                }
            }
            SIMD
            for (ptrdiff_t x = 0; x < width; x++) {
                ROW(num, i)[from + x] = total[x];
                ROW(den, i)[from + x] = weight[x];
            }
        }
}

/* By target: dk, and dc where there are features of edges. */
CLONES static void NAME(backward_rows)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, const int32_t *ptr, const int32_t *other, const int32_t *edge,
    NAME(In) k, NAME(In) q, NAME(In) v, NAME(In) c, NAME(In) gn, NAME(In) gd, NAME(Out) dk, NAME(Out) dc)
{
    const int32_t end = ptr[last]; /* of the edges that are worked on here */
    for (ptrdiff_t i = first; i < last; i++)
        for (ptrdiff_t from = 0; from < channels; from += BLOCK) {
            const ptrdiff_t width = channels - from < BLOCK ? channels - from : BLOCK;
            REAL total[BLOCK] = {0}, unread[BLOCK];
            const REAL *ki = ROW(k, i) + from, *gni = ROW(gn, i) + from, *gdi = ROW(gd, i) + from;
            for (int32_t e = ptr[i]; e < ptr[i + 1]; e++) {
                if (e + AHEAD < end) {
                    const ptrdiff_t next = other[e + AHEAD];
                    NAME(fetch)(ROW(q, next) + from, width);
                    NAME(fetch)(ROW(v, next) + from, width);
                }
                const REAL *qj = ROW(q, other[e]) + from, *vj = ROW(v, other[e]) + from;
                const REAL *ce = c.at ? ROW(c, edge[e]) + from : ZEROS;
                REAL *dce = dc.at ? ROW(dc, edge[e]) + from : unread;
                SIMD
                for (ptrdiff_t x = 0; x < width; x++) {
                    REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]);
                    REAL t = (gni[x] * vj[x] + gdi[x]) * (s * (1 - s));
                    total[x] += t;
                    dce[x] = t;
                }
            }
            SIMD
            for (ptrdiff_t x = 0; x < width; x++)
                ROW(dk, i)[from + x] = total[x];
        }
}

/* By source: dq and dv. */
CLONES static void NAME(backward_columns)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, const int32_t *ptr, const int32_t *other, const int32_t *edge,
    NAME(In) k, NAME(In) q, NAME(In) v, NAME(In) c, NAME(In) gn, NAME(In) gd, NAME(Out) dq, NAME(Out) dv)
{
    const int32_t end = ptr[last]; /* of the edges that are worked on here */
    for (ptrdiff_t j = first; j < last; j++)
        for (ptrdiff_t from = 0; from < channels; from += BLOCK) {
            const ptrdiff_t width = channels - from < BLOCK ? channels - from : BLOCK;
            REAL of_q[BLOCK] = {0}, of_v[BLOCK] = {0};
            const REAL *qj = ROW(q, j) + from, *vj = ROW(v, j) + from;
            for (int32_t e = ptr[j]; e < ptr[j + 1]; e++) {
                if (e + AHEAD < end) {
                    const ptrdiff_t next = other[e + AHEAD];
                    NAME(fetch)(ROW(k, next) + from, width);
                    NAME(fetch)(ROW(gn, next) + from, width);
                    NAME(fetch)(ROW(gd, next) + from, width);
                }
                const ptrdiff_t i = other[e];
                const REAL *ki = ROW(k, i) + from, *gni = ROW(gn, i) + from, *gdi = ROW(gd, i) + from;
                const REAL *ce = c.at ? ROW(c, edge[e]) + from : ZEROS;
                SIMD
                for (ptrdiff_t x = 0; x < width; x++) {
                    REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]);
                    of_q[x] += (gni[x] * vj[x] + gdi[x]) * (s * (1 - s));
                    of_v[x] += s * gni[x];
                }
            }
            SIMD
            for (ptrdiff_t x = 0; x < width; x++) {
                ROW(dq, j)[from + x] = of_q[x];
                ROW(dv, j)[from + x] = of_v[x];
            }
        }
}

/* By target: dgn, dgd, dk, and dc. */
CLONES static void NAME(double_rows)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, const int32_t *ptr, const int32_t *other, const int32_t *edge,
    NAME(In) k, NAME(In) q, NAME(In) v, NAME(In) c, NAME(In) gn, NAME(In) gd,
    NAME(In) lk, NAME(In) lq, NAME(In) lv, NAME(In) lc, NAME(Out) dgn, NAME(Out) dgd, NAME(Out) dk, NAME(Out) dc)
{
    const int32_t end = ptr[last]; /* of the edges that are worked on here */
    for (ptrdiff_t i = first; i < last; i++)
        for (ptrdiff_t from = 0; from < channels; from += BLOCK) {
            const ptrdiff_t width = channels - from < BLOCK ? channels - from : BLOCK;
            REAL of_gn[BLOCK] = {0}, of_gd[BLOCK] = {0}, of_k[BLOCK] = {0}, unread[BLOCK];
            const REAL *ki = ROW(k, i) + from, *gni = ROW(gn, i) + from, *gdi = ROW(gd, i) + from;
            const REAL *lki = ROW(lk, i) + from;
            for (int32_t e = ptr[i]; e < ptr[i + 1]; e++) {
                if (e + AHEAD < end) {
                    const ptrdiff_t next = other[e + AHEAD];
                    NAME(fetch)(ROW(q, next) + from, width);
                    NAME(fetch)(ROW(v, next) + from, width);
                    NAME(fetch)(ROW(lq, next) + from, width);
                    NAME(fetch)(ROW(lv, next) + from, width);
                }
                const ptrdiff_t j = other[e];
                const REAL *qj = ROW(q, j) + from, *vj = ROW(v, j) + from, *lqj = ROW(lq, j) + from;
                const REAL *lvj = ROW(lv, j) + from;
                const REAL *ce = c.at ? ROW(c, edge[e]) + from : ZEROS, *lce = lc.at ? ROW(lc, edge[e]) + from : ZEROS;
                REAL *dce = dc.at ? ROW(dc, edge[e]) + from : unread;
                SIMD
                for (ptrdiff_t x = 0; x < width; x++) {
                    REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]);
                    REAL slope = s * (1 - s), w = (lki[x] + lqj[x] + lce[x]) * slope;
                    REAL y = w * (1 - 2 * s) * (gni[x] * vj[x] + gdi[x]) + gni[x] * lvj[x] * slope;
                    of_gn[x] += w * vj[x] + s * lvj[x];
                    of_gd[x] += w;
                    of_k[x] += y;
                    dce[x] = y;
                }
            }
            SIMD
            for (ptrdiff_t x = 0; x < width; x++) {
                ROW(dgn, i)[from + x] = of_gn[x];
                ROW(dgd, i)[from + x] = of_gd[x];
                ROW(dk, i)[from + x] = of_k[x];
            }
        }
}

/* By source: dq and dv. */
CLONES static void NAME(double_columns)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, const int32_t *ptr, const int32_t *other, const int32_t *edge,
    NAME(In) k, NAME(In) q, NAME(In) v, NAME(In) c, NAME(In) gn, NAME(In) gd,
    NAME(In) lk, NAME(In) lq, NAME(In) lv, NAME(In) lc, NAME(Out) dq, NAME(Out) dv)
{
    const int32_t end = ptr[last]; /* of the edges that are worked on here */
    for (ptrdiff_t j = first; j < last; j++)
        for (ptrdiff_t from = 0; from < channels; from += BLOCK) {
            const ptrdiff_t width = channels - from < BLOCK ? channels - from : BLOCK;
            REAL of_q[BLOCK] = {0}, of_v[BLOCK] = {0};
            const REAL *qj = ROW(q, j) + from, *vj = ROW(v, j) + from, *lqj = ROW(lq, j) + from;
            const REAL *lvj = ROW(lv, j) + from;
            for (int32_t e = ptr[j]; e < ptr[j + 1]; e++) {
                if (e + AHEAD < end) {
                    const ptrdiff_t next = other[e + AHEAD];
                    NAME(fetch)(ROW(k, next) + from, width);
                    NAME(fetch)(ROW(gn, next) + from, width);
                    NAME(fetch)(ROW(gd, next) + from, width);
                    NAME(fetch)(ROW(lk, next) + from, width);
                }
                const ptrdiff_t i = other[e];
                const REAL *ki = ROW(k, i) + from, *gni = ROW(gn, i) + from, *gdi = ROW(gd, i) + from;
                const REAL *lki = ROW(lk, i) + from;
                const REAL *ce = c.at ? ROW(c, edge[e]) + from : ZEROS, *lce = lc.at ? ROW(lc, edge[e]) + from : ZEROS;
                SIMD
                for (ptrdiff_t x = 0; x < width; x++) {
                    REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]);
                    REAL slope = s * (1 - s), w = (lki[x] + lqj[x] + lce[x]) * slope;
                    of_q[x] += w * (1 - 2 * s) * (gni[x] * vj[x] + gdi[x]) + gni[x] * lvj[x] * slope;
                    of_v[x] += w * gni[x];
                }
            }
            SIMD
            for (ptrdiff_t x = 0; x < width; x++) {
                ROW(dq, j)[from + x] = of_q[x];
                ROW(dv, j)[from + x] = of_v[x];
            }
        }
}
