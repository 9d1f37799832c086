/* What happens at a node after its sums, for one floating point type. Included twice, after gated_real.h.

   Row by row, with D = den + CLOSED and silu(t) = t sigmoid(t):

       u = own + num / D,   x = (u - mean u) / sqrt(var u + EPSILON),   t = x weight + bias,   y = silu(t).

   The double backward is the derivative of the backward along (own', num', den', weight', bias'), with gy held: mixed
   derivatives commute. Sums over rows, for weight and bias, are left to the caller piece by piece.
*/

#define ROW(x, i) ((x).at + (ptrdiff_t)(i) * (x).stride)

/* u, and what is known of the row: 1 / standard deviation. x is written to `x`. */
static ALWAYS_INLINE REAL NAME(normalise)(
    ptrdiff_t channels, const REAL *own, const REAL *num, const REAL *den, REAL *restrict x)
{
    REAL mean = 0, square = 0;
    REDUCE(mean)
    for (ptrdiff_t m = 0; m < channels; m++) {
        x[m] = own[m] + num[m] / (den[m] + (REAL)CLOSED);
        mean += x[m];
    }
    mean /= (REAL)channels;
    REDUCE(square)
    for (ptrdiff_t m = 0; m < channels; m++) {
        x[m] -= mean;
        square += x[m] * x[m];
    }
    const REAL inverse = 1 / SQRT(square / (REAL)channels + (REAL)EPSILON);
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
        NAME(normalise)(channels, ROW(own, i), ROW(num, i), ROW(den, i), x);
        REAL *restrict yi = ROW(y, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL t = x[m] * weight[m] + bias[m];
            yi[m] = t * NAME(sigmoid)(t);
        }
    }
}

CLONES static void NAME(update_backward)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) own, NAME(In) num, NAME(In) den,
    const REAL *weight, const REAL *bias, NAME(In) gy, NAME(Out) down, NAME(Out) dnum, NAME(Out) dden,
    REAL *restrict dweight, REAL *restrict dbias)
{
    REAL *restrict x = room, *restrict gx = room + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *numi = ROW(num, i), *deni = ROW(den, i), *gyi = ROW(gy, i);
        const REAL inverse = NAME(normalise)(channels, ROW(own, i), numi, deni, x);
        REAL A = 0, B = 0;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t);
            const REAL gt = gyi[m] * (s + t * s * (1 - s));
            dweight[m] += gt * x[m];
            dbias[m] += gt;
            gx[m] = gt * weight[m];
        }
        REDUCE(A, B)
        for (ptrdiff_t m = 0; m < channels; m++) {
            A += gx[m];
            B += gx[m] * x[m];
        }
        A /= (REAL)channels;
        B /= (REAL)channels;
        REAL *restrict downi = ROW(down, i), *restrict dnumi = ROW(dnum, i), *restrict ddeni = ROW(dden, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL gu = inverse * (gx[m] - A - x[m] * B), over = 1 / (deni[m] + (REAL)CLOSED);
            downi[m] = gu;
            dnumi[m] = gu * over;
            ddeni[m] = -gu * over * numi[m] * over;
        }
    }
}

CLONES static void NAME(update_double)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) own, NAME(In) num, NAME(In) den,
    const REAL *weight, const REAL *bias, NAME(In) gy, NAME(In) lown, NAME(In) lnum, NAME(In) lden,
    const REAL *lweight, const REAL *lbias, NAME(Out) dgy, NAME(Out) down, NAME(Out) dnum, NAME(Out) dden,
    REAL *restrict dweight, REAL *restrict dbias)
{
    /* A prime is a derivative along the given direction. */
    REAL *restrict x = room, *restrict x_ = x + channels, *restrict gx = x_ + channels, *restrict gx_ = gx + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *numi = ROW(num, i), *deni = ROW(den, i), *gyi = ROW(gy, i);
        const REAL *lowni = ROW(lown, i), *lnumi = ROW(lnum, i), *ldeni = ROW(lden, i);
        const REAL inverse = NAME(normalise)(channels, ROW(own, i), numi, deni, x);
        REAL mean = 0, q = 0, A = 0, B = 0, A_ = 0, B_ = 0;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL over = 1 / (deni[m] + (REAL)CLOSED);
            x_[m] = lowni[m] + (lnumi[m] - numi[m] * over * ldeni[m]) * over; /* u' for now */
        }
        REDUCE(mean, q)
        for (ptrdiff_t m = 0; m < channels; m++) {
            mean += x_[m];
            q += x_[m] * x[m];
        }
        mean /= (REAL)channels;
        q /= (REAL)channels;
        REAL *restrict dgyi = ROW(dgy, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            x_[m] = inverse * (x_[m] - mean - x[m] * q);
            const REAL t = x[m] * weight[m] + bias[m], t_ = x_[m] * weight[m] + x[m] * lweight[m] + lbias[m];
            const REAL s = NAME(sigmoid)(t), slope = s * (1 - s), f1 = s + t * slope;
            const REAL gt = gyi[m] * f1, gt_ = gyi[m] * slope * (2 + t * (1 - 2 * s)) * t_;
            dgyi[m] = f1 * t_;
            gx[m] = gt * weight[m];
            gx_[m] = gt_ * weight[m] + gt * lweight[m];
            dweight[m] += gt_ * x[m] + gt * x_[m];
            dbias[m] += gt_;
        }
        REDUCE(A, B, A_, B_)
        for (ptrdiff_t m = 0; m < channels; m++) {
            A += gx[m];
            B += gx[m] * x[m];
            A_ += gx_[m];
            B_ += gx_[m] * x[m] + gx[m] * x_[m];
        }
        A /= (REAL)channels;
        B /= (REAL)channels;
        A_ /= (REAL)channels;
        B_ /= (REAL)channels;
        REAL *restrict downi = ROW(down, i), *restrict dnumi = ROW(dnum, i), *restrict ddeni = ROW(dden, i);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL gu = inverse * (gx[m] - A - x[m] * B), over = 1 / (deni[m] + (REAL)CLOSED), r = numi[m] * over;
            const REAL gu_ = inverse * (gx_[m] - A_ - x_[m] * B - x[m] * B_) - inverse * q * gu;
            const REAL r_ = (lnumi[m] - r * ldeni[m]) * over, shrink = ldeni[m] * over;
            downi[m] = gu_;
            dnumi[m] = (gu_ - gu * shrink) * over;
            ddeni[m] = (gu * r * shrink - gu_ * r - gu * r_) * over;
        }
    }
}

/* silu(x) alone, and its first and second derivative: `order` of them. */
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

#undef ROW
