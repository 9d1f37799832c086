/* Normalisation of rows for one floating point type. Included twice, after update_real.h.

       x = (u - mean u) / sqrt(var u + EPSILON),   y = x weight + bias.

   As in update_real.h, the double backward is the derivative of the backward along (u', weight', bias'), with gy held.
*/

CLONES static void NAME(norm_forward)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) u, const REAL *weight,
    const REAL *bias, NAME(Out) y)
{
    REAL *restrict x = room;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *ui = ROW(u, i);
        REAL *restrict out = ROW(y, i);
        for (ptrdiff_t m = 0; m < channels; m++)
            x[m] = ui[m];
        NAME(normalise)(channels, x);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++)
            out[m] = x[m] * weight[m] + bias[m];
    }
}

CLONES static void NAME(norm_backward)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) u, const REAL *weight,
    NAME(In) gy, NAME(Out) du, REAL *restrict sums)
{
    REAL *restrict x = room, *restrict g = x + channels, *restrict dweight = sums, *restrict dbias = sums + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *ui = ROW(u, i), *gyi = ROW(gy, i);
        REAL *restrict out = ROW(du, i);
        for (ptrdiff_t m = 0; m < channels; m++)
            x[m] = ui[m];
        const REAL inverse = NAME(normalise)(channels, x);
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            dweight[m] += gyi[m] * x[m];
            dbias[m] += gyi[m];
            g[m] = gyi[m] * weight[m];
        }
        const REAL A = NAME(total)(channels, g) / (REAL)channels, B = NAME(dot)(channels, g, x) / (REAL)channels;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++)
            out[m] = inverse * (g[m] - A - x[m] * B);
    }
}

CLONES static void NAME(norm_double)(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t channels, REAL *restrict room, NAME(In) u, const REAL *weight,
    NAME(In) gy, NAME(In) lu, const REAL *lweight, const REAL *lbias, NAME(Out) dgy, NAME(Out) du, REAL *restrict sums)
{
    REAL *restrict x = room, *restrict x_ = x + channels, *restrict g = x_ + channels, *restrict g_ = g + channels;
    for (ptrdiff_t i = first; i < last; i++) {
        const REAL *ui = ROW(u, i), *gyi = ROW(gy, i), *lui = ROW(lu, i);
        REAL *restrict y_ = ROW(dgy, i), *restrict out = ROW(du, i);
        for (ptrdiff_t m = 0; m < channels; m++)
            x[m] = ui[m];
        const REAL inverse = NAME(normalise)(channels, x);
        const REAL mean = NAME(total)(channels, lui) / (REAL)channels, q = NAME(dot)(channels, x, lui) / (REAL)channels;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            x_[m] = inverse * (lui[m] - mean - x[m] * q);
            y_[m] = x_[m] * weight[m] + x[m] * lweight[m] + lbias[m];
            g[m] = gyi[m] * weight[m];
            g_[m] = gyi[m] * lweight[m];
            sums[m] += gyi[m] * x_[m];
        }
        const REAL A = NAME(total)(channels, g) / (REAL)channels, A_ = NAME(total)(channels, g_) / (REAL)channels;
        const REAL B = NAME(dot)(channels, g, x) / (REAL)channels;
        const REAL B_ = (NAME(dot)(channels, g_, x) + NAME(dot)(channels, g, x_)) / (REAL)channels;
        SIMD
        for (ptrdiff_t m = 0; m < channels; m++) {
            const REAL gu = inverse * (g[m] - A - x[m] * B);
            out[m] = inverse * (g_[m] - A_ - x_[m] * B - x[m] * B_) - inverse * q * gu;
        }
    }
}
