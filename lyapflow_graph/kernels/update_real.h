/* What happens at a node after its sums, for one floating point type. Included twice, after gated_real.h.

   Row by row, with D = den + CLOSED and silu(t) = t sigmoid(t):

       u = own + num / D,   x = (u - mean u) / sqrt(var u + EPSILON),   t = x weight + bias,   y = silu(t).

   The double backward is the derivative of the backward along (own', num', den', weight', bias'), with gy held: mixed
   derivatives commute. Sums over rows, for weight and bias, are left to the caller piece by piece.

   Some rows are wider than they have channels (`padded`), with zeros at their end, which stay zeros.
*/

#define ROW(x, i) ((x).at + (ptrdiff_t)(i) * (x).stride)

static ALWAYS_INLINE void NAME(load)(ptrdiff_t channels, ptrdiff_t padded, const REAL *row, REAL *restrict to)
{
    memcpy(to, row, (size_t)channels * sizeof(REAL));
    for (ptrdiff_t m = channels; m < padded; m++)
        to[m] = 0;
}

/* Sums of a row, in lanes that are added up at the end: an order that does not hold the processor up. */
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
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
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
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* From u to x, in place; gives 1 / standard deviation. */
static ALWAYS_INLINE REAL NAME(normalise)(ptrdiff_t channels, ptrdiff_t padded, REAL *restrict x)
{
    const REAL mean = NAME(total)(padded, x) / (REAL)channels;
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++)
        x[m] -= mean;
    for (ptrdiff_t m = channels; m < padded; m++)
        x[m] = 0;
    const REAL inverse = 1 / SQRT(NAME(dot)(padded, x, x) / (REAL)channels + (REAL)EPSILON);
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++)
        x[m] *= inverse;
    return inverse;
}

/* From u' to x', in place; gives the mean of x u'. */
static ALWAYS_INLINE REAL NAME(normalise_dual)(
    ptrdiff_t channels, ptrdiff_t padded, const REAL *restrict x, REAL inverse, REAL *restrict x_)
{
    const REAL mean = NAME(total)(padded, x_) / (REAL)channels, q = NAME(dot)(padded, x, x_) / (REAL)channels;
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++)
        x_[m] = inverse * (x_[m] - mean - x[m] * q);
    for (ptrdiff_t m = channels; m < padded; m++)
        x_[m] = 0;
    return q;
}

/* From x to y, in place. */
static ALWAYS_INLINE void NAME(activate)(ptrdiff_t padded, REAL *restrict x, const REAL *weight, const REAL *bias)
{
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++) {
        const REAL t = x[m] * weight[m] + bias[m];
        x[m] = t * NAME(sigmoid)(t);
    }
}

/* From g, the cotangent of y, to that of u. Overwrites g. */
static ALWAYS_INLINE void NAME(norm_backward)(
    ptrdiff_t channels, ptrdiff_t padded, const REAL *restrict x, REAL inverse, const REAL *weight, const REAL *bias,
    REAL *restrict g, REAL *restrict gu, REAL *restrict dweight, REAL *restrict dbias)
{
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++) {
        const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t);
        const REAL gt = g[m] * (s + t * s * (1 - s));
        dweight[m] += gt * x[m];
        dbias[m] += gt;
        g[m] = gt * weight[m];
    }
    const REAL A = NAME(total)(padded, g) / (REAL)channels, B = NAME(dot)(padded, g, x) / (REAL)channels;
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++)
        gu[m] = inverse * (g[m] - A - x[m] * B);
    for (ptrdiff_t m = channels; m < padded; m++)
        gu[m] = 0;
}

/* The same with derivatives along x', g' and, unless they are NULL, weight' and bias'; and that of y along these, if
   `y_` is not NULL. `q` is what normalise_dual gave. Overwrites g and g'. */
static ALWAYS_INLINE void NAME(norm_dual)(
    ptrdiff_t channels, ptrdiff_t padded, const REAL *restrict x, const REAL *restrict x_, REAL inverse, REAL q,
    const REAL *weight, const REAL *bias, const REAL *weight_, const REAL *bias_, REAL *restrict g, REAL *restrict g_,
    REAL *restrict gu, REAL *restrict gu_, REAL *restrict y_, REAL *restrict dweight, REAL *restrict dbias)
{
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++) {
        const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t), slope = s * (1 - s), f1 = s + t * slope;
        const REAL t_ = x_[m] * weight[m] + (weight_ ? x[m] * weight_[m] + bias_[m] : 0);
        const REAL gt = g[m] * f1, gt_ = g_[m] * f1 + g[m] * slope * (2 + t * (1 - 2 * s)) * t_;
        if (y_)
            y_[m] = f1 * t_;
        g[m] = gt * weight[m];
        g_[m] = gt_ * weight[m] + (weight_ ? gt * weight_[m] : 0);
        dweight[m] += gt_ * x[m] + gt * x_[m];
        dbias[m] += gt_;
    }
    const REAL A = NAME(total)(padded, g) / (REAL)channels, A_ = NAME(total)(padded, g_) / (REAL)channels;
    const REAL B = NAME(dot)(padded, g, x) / (REAL)channels;
    const REAL B_ = (NAME(dot)(padded, g_, x) + NAME(dot)(padded, g, x_)) / (REAL)channels;
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++) {
        gu[m] = inverse * (g[m] - A - x[m] * B);
        gu_[m] = inverse * (g_[m] - A_ - x_[m] * B - x[m] * B_) - inverse * q * gu[m];
    }
    for (ptrdiff_t m = channels; m < padded; m++)
        gu[m] = gu_[m] = 0;
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
        NAME(normalise)(channels, channels, x);
        NAME(activate)(channels, x, weight, bias);
        memcpy(ROW(y, i), x, (size_t)channels * sizeof(REAL));
    }
}

CLONES static void NAME(update_backward)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) own, NAME(In) num, NAME(In) den,
    const REAL *weight, const REAL *bias, NAME(In) gy, NAME(Out) down, NAME(Out) dnum, NAME(Out) dden,
    REAL *restrict dweight, REAL *restrict dbias)
{
    REAL *restrict x = room, *restrict g = x + channels, *restrict over = g + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *owni = ROW(own, i), *numi = ROW(num, i), *deni = ROW(den, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            over[m] = 1 / (deni[m] + (REAL)CLOSED);
            x[m] = owni[m] + numi[m] * over[m];
        }
        const REAL inverse = NAME(normalise)(channels, channels, x);
        NAME(load)(channels, channels, ROW(gy, i), g);
        REAL *restrict gu = ROW(down, i), *restrict dnumi = ROW(dnum, i), *restrict ddeni = ROW(dden, i);
        NAME(norm_backward)(channels, channels, x, inverse, weight, bias, g, gu, dweight, dbias);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            dnumi[m] = gu[m] * over[m];
            ddeni[m] = -gu[m] * over[m] * numi[m] * over[m];
        }
    }
}

CLONES static void NAME(update_double)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) own, NAME(In) num, NAME(In) den,
    const REAL *weight, const REAL *bias, NAME(In) gy, NAME(In) lown, NAME(In) lnum, NAME(In) lden,
    const REAL *lweight, const REAL *lbias, NAME(Out) dgy, NAME(Out) down, NAME(Out) dnum, NAME(Out) dden,
    REAL *restrict dweight, REAL *restrict dbias)
{
    REAL *restrict x = room, *restrict x_ = x + channels, *restrict g = x_ + channels, *restrict g_ = g + channels;
    REAL *restrict gu = g_ + channels, *restrict over = gu + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *owni = ROW(own, i), *numi = ROW(num, i), *deni = ROW(den, i);
        const REAL *lowni = ROW(lown, i), *lnumi = ROW(lnum, i), *ldeni = ROW(lden, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            over[m] = 1 / (deni[m] + (REAL)CLOSED);
            const REAL r = numi[m] * over[m];
            x[m] = owni[m] + r;
            x_[m] = lowni[m] + (lnumi[m] - r * ldeni[m]) * over[m];
            g_[m] = 0;
        }
        const REAL inverse = NAME(normalise)(channels, channels, x);
        const REAL q = NAME(normalise_dual)(channels, channels, x, inverse, x_);
        NAME(load)(channels, channels, ROW(gy, i), g);
        REAL *restrict gu_ = ROW(down, i), *restrict dnumi = ROW(dnum, i), *restrict ddeni = ROW(dden, i);
        NAME(norm_dual)(channels, channels, x, x_, inverse, q, weight, bias, lweight, lbias, g, g_, gu, gu_,
                        ROW(dgy, i), dweight, dbias);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL r = numi[m] * over[m], r_ = (lnumi[m] - r * ldeni[m]) * over[m], shrink = ldeni[m] * over[m];
            dnumi[m] = (gu_[m] - gu[m] * shrink) * over[m];
            ddeni[m] = (gu[m] * r * shrink - gu_[m] * r - gu[m] * r_) * over[m];
        }
    }
}

/* silu(x) alone, its first and second derivative: `order` of them; or, as the third, the derivative of the
   backward, g silu'(x), along x' and g'. */
CLONES static void NAME(silu)(
    int order, ptrdiff_t first, ptrdiff_t last, const REAL *x, const REAL *g, const REAL *l, const REAL *g_,
    REAL *restrict out, REAL *restrict other)
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
    else if (order == 2)
        SIMD
        for (ptrdiff_t m = first; m < last; m++) {
            const REAL s = NAME(sigmoid)(x[m]), slope = s * (1 - s);
            out[m] = l[m] * (s + x[m] * slope);
            other[m] = g[m] * l[m] * slope * (2 + x[m] * (1 - 2 * s));
        }
    else
        SIMD
        for (ptrdiff_t m = first; m < last; m++) {
            const REAL s = NAME(sigmoid)(x[m]), slope = s * (1 - s), f1 = s + x[m] * slope;
            out[m] = g_[m] * f1 + g[m] * l[m] * slope * (2 + x[m] * (1 - 2 * s));
        }
}
