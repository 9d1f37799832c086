/* Normalisation of rows for one floating point type. Included twice, after layer_real.h, whose padded rows it has.

       x = (u - mean u) / sqrt(var u + EPSILON),   y = x weight + bias.

   As in update_real.h, the double backward is the derivative of the backward along (u', weight', bias'), with gy held.
*/

/* From u to x; gives 1 / standard deviation. */
static ALWAYS_INLINE REAL NAME(normalise_padded)(
    ptrdiff_t channels, ptrdiff_t padded, const REAL *u, const REAL *restrict inside, REAL *restrict x)
{
    const REAL mean = NAME(total)(padded, u) / (REAL)channels;
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++)
        x[m] = (u[m] - mean) * inside[m];
    const REAL inverse = 1 / SQRT(NAME(dot)(padded, x, x) / (REAL)channels + (REAL)EPSILON);
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++)
        x[m] *= inverse;
    return inverse;
}

CLONES static void NAME(norm_forward)(NAME(Piece) piece, NAME(In) u, const REAL *weight, const REAL *bias, NAME(Out) y)
{
    UNPACK;
    REAL *restrict x = room, *restrict at = x + padded, *restrict more = at + padded;
    weight = NAME(padded_row)(stored, padded, weight, more);
    bias = NAME(padded_row)(stored, padded, bias, more + padded);
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        NAME(normalise_padded)(channels, padded, NAME(padded_row)(stored, padded, ROW(u, i), at), inside, x);
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            x[m] = x[m] * weight[m] + bias[m];
        NAME(store)(stored, padded, x, ROW(y, i));
    }
}

CLONES static void NAME(norm_backward)(
    NAME(Piece) piece, NAME(In) u, const REAL *weight, NAME(In) gy, NAME(Out) du, REAL *restrict sums)
{
    UNPACK;
    REAL *restrict x = room, *restrict at = x + padded, *restrict g = at + padded, *restrict more = g + padded;
    REAL *restrict dweight = sums, *restrict dbias = sums + padded;
    weight = NAME(padded_row)(stored, padded, weight, more);
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *ui = NAME(padded_row)(stored, padded, ROW(u, i), at);
        const REAL inverse = NAME(normalise_padded)(channels, padded, ui, inside, x);
        const REAL *gi = NAME(padded_row)(stored, padded, ROW(gy, i), at);
        REAL A[LANES] = {0}, B[LANES] = {0};
        for (ptrdiff_t from = 0; from < padded; from += LANES)
            SIMD
            for (ptrdiff_t l = 0; l < LANES; l++) {
                const ptrdiff_t m = from + l;
                dweight[m] += gi[m] * x[m];
                dbias[m] += gi[m];
                g[m] = gi[m] * weight[m];
                A[l] += g[m];
                B[l] += g[m] * x[m];
            }
        const REAL a = NAME(add_up)(A) / (REAL)channels, b = NAME(add_up)(B) / (REAL)channels;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            g[m] = inverse * (g[m] - a - x[m] * b);
        NAME(store)(stored, padded, g, ROW(du, i));
    }
}

CLONES static void NAME(norm_double)(
    NAME(Piece) piece, NAME(In) u, const REAL *weight, NAME(In) gy, NAME(In) lu, const REAL *lweight, const REAL *lbias,
    NAME(Out) dgy, NAME(Out) du, REAL *restrict sums)
{
    UNPACK;
    REAL *restrict x = room, *restrict x_ = x + padded, *restrict at = x_ + padded, *restrict at_ = at + padded;
    REAL *restrict y_ = at_ + padded, *restrict more = y_ + padded;
    weight = NAME(padded_row)(stored, padded, weight, more);
    lweight = NAME(padded_row)(stored, padded, lweight, more + padded);
    lbias = NAME(padded_row)(stored, padded, lbias, more + 2 * padded);
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *ui = NAME(padded_row)(stored, padded, ROW(u, i), at);
        const REAL inverse = NAME(normalise_padded)(channels, padded, ui, inside, x);
        const REAL *g = NAME(padded_row)(stored, padded, ROW(gy, i), at);
        const REAL *ui_ = NAME(padded_row)(stored, padded, ROW(lu, i), at_);
        const REAL mean = NAME(total)(padded, ui_) / (REAL)channels, q = NAME(dot)(padded, x, ui_) / (REAL)channels;
        REAL A[LANES] = {0}, A_[LANES] = {0}, B[LANES] = {0}, B_[LANES] = {0};
        for (ptrdiff_t from = 0; from < padded; from += LANES)
            SIMD
            for (ptrdiff_t l = 0; l < LANES; l++) {
                const ptrdiff_t m = from + l;
                const REAL gx = g[m] * weight[m], gx_ = g[m] * lweight[m];
                x_[m] = inverse * (ui_[m] - mean - x[m] * q);
                y_[m] = x_[m] * weight[m] + x[m] * lweight[m] + lbias[m];
                sums[m] += g[m] * x_[m];
                A[l] += gx;
                A_[l] += gx_;
                B[l] += gx * x[m];
                B_[l] += gx_ * x[m] + gx * x_[m];
            }
        NAME(store)(stored, padded, y_, ROW(dgy, i));
        const REAL n = (REAL)channels, a = NAME(add_up)(A) / n, a_ = NAME(add_up)(A_) / n;
        const REAL b = NAME(add_up)(B) / n, b_ = NAME(add_up)(B_) / n;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL gu = inverse * (g[m] * weight[m] - a - x[m] * b);
            y_[m] = inverse * (g[m] * lweight[m] - a_ - x_[m] * b - x[m] * b_) - inverse * q * gu;
        }
        NAME(store)(stored, padded, y_, ROW(du, i));
    }
}

#undef UNPACK
