/* A whole gated layer for one floating point type: what happens between two matrix products, with the derivatives that
   a step along the gradient of an energy needs. Included twice, after gated_real.h and update_real.h.

   With p = [q v k own] of every node and b their biases, and s the sigmoid of z = k_i + q_j + c_ij for an edge from j to i,

       num = sum_j s v_j,   over = 1 / (sum_j s + CLOSED),   r = num over,   u = own + r,   y = h + silu(norm(u)).

   Where gates are not normalised, over = 1. The code has over = 1 / (share sum_j s + closed) for both, with share = 1 or
   0; then every r in the derivatives below, which comes from that of over, has the factor share.

   The matrix product leaves the biases out. Those of q and k are added to k, and those of own and v to own: where v_j is
   without its bias b, so is r once b CLOSED over is taken from it, and v_j - r is what it was. A sum that is not
   normalised has b once for every gate: then v has its bias already, and `biases` has zero there.

   All that a node's derivative in its own k needs is one more number for each channel, which a second pass over its
   edges would otherwise compute again:

       R = du / dk = over (sum_j s' v_j - r sum_j s'),     s' = s (1 - s).

   Mean and 1 / standard deviation of u, and what the derivative of the normalisation needs of u', are kept as well.

   backward    of a cotangent gy of y, with gu that of u and gn = gu over:
                   dk = gu R,   down = gu,   dq_j = sum_i gn_i (v_j - r_i) s',   dv_j = sum_i gn_i s;
   dual value  the derivative of all of the above along p', with w = k'_i + q'_j and s'' = s' (1 - 2 s):
                   num' = sum_j w s' v_j + s v'_j,   den' = sum_j w s',   r' = (num' - r den') over,
                   R' = over (sum_j (w s'' v_j + s' v'_j) - r sum_j w s'' - r' sum_j s') - over den' R;
   dual backward  the derivative of the backward along p' and gy', with gn' = (gu' - gu den' over) over:
                   dk' = gu' R + gu R',   down' = gu',
                   dq'_j = sum_i (gn' (v - r) + gn (v' - r')) s' + gn (v - r) w s'',   dv'_j = sum_i gn' s + gn w s'.

   A prime on a quantity is its derivative along the given direction: a trailing underscore in the code. The last layer of
   an energy goes on to f = silu(y): its kernels take the cotangent of f, and y.

   Rows of p and of the other buffers made here are as wide as `padded` says, a multiple of LANES, so that loops need no
   remainders. Entries beyond the channels are finite and of no consequence; where they could be, `inside` is zero.
*/

/* Loops over edges are compiled for these widths, with sums in registers where they fit. */
#define IN_BLOCKS(DO)                                                                                                  \
    for (ptrdiff_t from = 0, width; from < padded; from += width) {                                                    \
        const ptrdiff_t left = padded - from;                                                                          \
        width = left >= 64 ? 64 : left >= 32 ? 32 : 16;                                                                \
        switch (width) {                                                                                               \
        case 64: DO(64); break;                                                                                        \
        case 32: DO(32); break;                                                                                        \
        default: DO(16);                                                                                               \
        }                                                                                                              \
    }

typedef struct {
    ptrdiff_t first, last, channels, padded;
    ptrdiff_t stored; /* entries of a row of an ordinary tensor: as many as it has channels, or padded as well */
    const int32_t *ptr, *other, *edge;
    REAL *restrict room;
    REAL share, closed;
    int normed; /* whether rows are normalised; if not, their mean counts as 0 and their deviation as 1 */
} NAME(Piece);

#define UNPACK                                                                                                         \
    /* The mask says that it is a multiple: loops need no remainders. */                                               \
    const ptrdiff_t channels = piece.channels, padded = piece.padded & -(ptrdiff_t)LANES, stored = piece.stored;       \
    REAL *restrict inside = piece.room, *restrict room = inside + padded;                                              \
    for (ptrdiff_t m = 0; m < padded; m++)                                                                             \
        inside[m] = m < channels

/* A row of an ordinary tensor, as wide as it has channels, in a padded one. */
static ALWAYS_INLINE const REAL *NAME(padded_row)(ptrdiff_t stored, ptrdiff_t padded, const REAL *row, REAL *restrict room)
{
    if (stored == padded)
        return row;
    SIMD /* not memcpy, whose stores overlap the loads that follow by pieces, which then wait */
    for (ptrdiff_t m = 0; m < padded; m++)
        room[m] = m < stored ? row[m] : 0;
    return room;
}

static ALWAYS_INLINE void NAME(store)(ptrdiff_t stored, ptrdiff_t padded, const REAL *restrict row, REAL *restrict to)
{
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++)
        if (m < stored)
            to[m] = row[m];
}

/* num, den and the sums of s' v and s' of one node. */
static ALWAYS_INLINE void NAME(sums_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, NAME(In) c, const REAL *ki, const REAL *bias_v, REAL share,
    REAL closed, REAL *restrict out)
{
    REAL num[64] = {0}, den[64] = {0}, with_v[64] = {0}, slopes[64] = {0};
    for (int32_t e = begin; e < end; e++) {
        if (e + AHEAD < limit) {
            const REAL *next = p + 4 * padded * (ptrdiff_t)other[e + AHEAD] + from;
            NAME(fetch)(next, width);
            NAME(fetch)(next + padded, width);
        }
        const REAL *qj = p + 4 * padded * (ptrdiff_t)other[e] + from, *vj = qj + padded;
        if (c.at) {
            const REAL *ce = c.at + c.stride * (ptrdiff_t)edge[e] + from;
            SIMD
            for (ptrdiff_t x = 0; x < width; x++) {
                const REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]), slope = s * (1 - s);
                num[x] += s * vj[x];
                den[x] += s;
                with_v[x] += slope * vj[x];
                slopes[x] += slope;
            }
        } else {
            SIMD
            for (ptrdiff_t x = 0; x < width; x++) {
                const REAL s = NAME(sigmoid)(ki[x] + qj[x]), slope = s * (1 - s);
                num[x] += s * vj[x];
                den[x] += s;
                with_v[x] += slope * vj[x];
                slopes[x] += slope;
            }
        }
    }
    SIMD
    for (ptrdiff_t x = 0; x < width; x++) {
        const REAL over = 1 / (share * den[x] + closed), r = (num[x] - bias_v[x] * closed) * over;
        out[x] = r;
        out[padded + x] = over;
        out[2 * padded + x] = over * (with_v[x] - share * r * slopes[x]);
    }
}

/* p, c, the biases, the normalisation's weight and bias, h or nothing -> y, silu(y) if asked for, [r over R] and [mean,
   1 / deviation]; adds the biases to k and own in p. */
CLONES static void NAME(layer_value)(
    NAME(Piece) piece, REAL *p, NAME(In) c, const REAL *biases, const REAL *weight, const REAL *bias, NAME(In) h,
    NAME(Out) y, NAME(Out) f, REAL *saved, REAL *stats)
{
    UNPACK;
    REAL *restrict x = room, *restrict to_k = x + padded, *restrict to_own = to_k + padded;
    const REAL *bias_v = biases + padded;
    SIMD
    for (ptrdiff_t m = 0; m < padded; m++) {
        to_k[m] = biases[m] + biases[2 * padded + m];
        to_own[m] = bias_v[m] + biases[3 * padded + m];
    }
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        REAL *restrict k = p + 4 * padded * i + 2 * padded, *restrict own = k + padded;
        REAL *restrict r = saved + 3 * padded * i;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            k[m] += to_k[m];
            own[m] += to_own[m];
        }
#define DO(n)                                                                                                          \
        NAME(sums_of)(n, piece.ptr[i], piece.ptr[i + 1], limit, from, padded, piece.other, piece.edge, p, c, k + from, \
                      bias_v + from, piece.share, piece.closed, r + from)
        IN_BLOCKS(DO)
#undef DO
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            x[m] = own[m] + r[m];
        const REAL mean = piece.normed ? NAME(total)(padded, x) / (REAL)channels : 0;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            x[m] = (x[m] - mean) * inside[m];
        const REAL inverse = piece.normed ? 1 / SQRT(NAME(dot)(padded, x, x) / (REAL)channels + (REAL)EPSILON) : 1;
        stats[2 * i] = mean;
        stats[2 * i + 1] = inverse;
        const REAL *hi = h.at ? NAME(padded_row)(stored, padded, ROW(h, i), to_own + padded) : NULL;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL t = x[m] * inverse * weight[m] + bias[m];
            x[m] = t * NAME(sigmoid)(t) + (hi ? hi[m] : 0);
        }
        NAME(store)(stored, padded, x, ROW(y, i));
        if (f.at) {
            SIMD
            for (ptrdiff_t m = 0; m < padded; m++)
                x[m] *= NAME(sigmoid)(x[m]);
            NAME(store)(stored, padded, x, ROW(f, i));
        }
    }
}

/* p, [r over R], [mean, 1 / deviation], weight, bias, gy -> gy once more, dk and down in dp, gn; sums of dweight, dbias,
   dk and down. With y, gy is the cotangent of silu(y), and that of y is what is given once more. */
CLONES static void NAME(layer_backward_rows)(
    NAME(Piece) piece, const REAL *p, const REAL *saved, const REAL *stats, const REAL *weight, const REAL *bias,
    NAME(In) gy, NAME(In) y, NAME(Out) again, REAL *dp, REAL *gn, REAL *restrict sums)
{
    UNPACK;
    REAL *restrict at = room, *restrict gt = at + padded;
    REAL *restrict dweight = sums, *restrict dbias = sums + padded;
    REAL *restrict sum_k = dbias + padded, *restrict sum_own = sum_k + padded;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *own = p + 4 * padded * i + 3 * padded;
        const REAL *r = saved + 3 * padded * i, *over = r + padded, *R = over + padded;
        const REAL mean = stats[2 * i], inverse = stats[2 * i + 1];
        const REAL *gi = NAME(padded_row)(stored, padded, ROW(gy, i), at);
        if (y.at) {
            const REAL *yi = NAME(padded_row)(stored, padded, ROW(y, i), gt);
            SIMD
            for (ptrdiff_t m = 0; m < padded; m++) {
                const REAL s = NAME(sigmoid)(yi[m]);
                at[m] = gi[m] * (s + yi[m] * s * (1 - s));
            }
            gi = at;
        }
        if (again.at)
            NAME(store)(stored, padded, gi, ROW(again, i));
        REAL A[LANES] = {0}, B[LANES] = {0};
        for (ptrdiff_t from = 0; from < padded; from += LANES)
            SIMD
            for (ptrdiff_t l = 0; l < LANES; l++) {
                const ptrdiff_t m = from + l;
                const REAL x = (own[m] + r[m] - mean) * inverse, t = x * weight[m] + bias[m], s = NAME(sigmoid)(t);
                const REAL slope = gi[m] * (s + t * s * (1 - s)), below = slope * weight[m];
                dweight[m] += slope * x;
                dbias[m] += slope;
                A[l] += below;
                B[l] += below * x;
                gt[m] = below;
            }
        const REAL over_n = piece.normed ? 1 / (REAL)channels : 0, a = NAME(add_up)(A) * over_n, b = NAME(add_up)(B) * over_n;
        REAL *restrict dk = dp + 4 * padded * i + 2 * padded, *restrict down = dk + padded;
        REAL *restrict gni = gn + padded * i;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL x = (own[m] + r[m] - mean) * inverse, gu = inverse * inside[m] * (gt[m] - a - x * b);
            gni[m] = gu * over[m];
            dk[m] = gu * R[m];
            down[m] = gu;
            sum_k[m] += dk[m];
            sum_own[m] += gu;
        }
    }
}

static ALWAYS_INLINE void NAME(columns_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, NAME(In) c, const REAL *saved, const REAL *gn,
    REAL share, const REAL *qj, REAL *restrict dqj, NAME(Out) dc, REAL *restrict sums)
{
    const REAL *vj = qj + padded;
    REAL of_q[64] = {0}, of_v[64] = {0}, unread[64] = {0};
    for (int32_t e = begin; e < end; e++) {
        if (e + AHEAD < limit) {
            const ptrdiff_t next = other[e + AHEAD];
            NAME(fetch)(p + 4 * padded * next + 2 * padded + from, width);
            NAME(fetch)(saved + 3 * padded * next + from, width);
            NAME(fetch)(gn + padded * next + from, width);
        }
        const ptrdiff_t i = other[e];
        const REAL *ki = p + 4 * padded * i + 2 * padded + from, *ri = saved + 3 * padded * i + from;
        const REAL *gni = gn + padded * i + from;
        const REAL *ce = c.at ? c.at + c.stride * (ptrdiff_t)edge[e] + from : ZEROS;
        REAL *dce = dc.at ? dc.at + dc.stride * (ptrdiff_t)edge[e] + from : unread;
        SIMD
        for (ptrdiff_t x = 0; x < width; x++) {
            const REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]);
            const REAL t = gni[x] * (vj[x] - share * ri[x]) * (s * (1 - s));
            of_q[x] += t;
            of_v[x] += gni[x] * s;
            dce[x] += t;
        }
    }
    SIMD
    for (ptrdiff_t x = 0; x < width; x++) {
        dqj[x] = of_q[x];
        dqj[padded + x] = of_v[x];
        sums[x] += of_q[x];
        sums[padded + x] += of_v[x];
    }
}

/* p, c, [r over R], gn -> dq and dv in dp, dc; sums of dq and dv. By source. */
CLONES static void NAME(layer_backward_columns)(
    NAME(Piece) piece, const REAL *p, NAME(In) c, const REAL *saved, const REAL *gn, REAL *dp, NAME(Out) dc,
    REAL *restrict sums)
{
    const ptrdiff_t padded = piece.padded;
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t j = piece.first; j < piece.last; j++) {
#define DO(n)                                                                                                          \
        NAME(columns_of)(n, piece.ptr[j], piece.ptr[j + 1], limit, from, padded, piece.other, piece.edge, p, c, saved, \
                         gn, piece.share, p + 4 * padded * j + from, dp + 4 * padded * j + from, dc, sums + from)
        IN_BLOCKS(DO)
#undef DO
    }
}

static ALWAYS_INLINE void NAME(dual_sums_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, const REAL *p_, NAME(In) c, ptrdiff_t i,
    const REAL *saved, REAL share, REAL *restrict out)
{
    const REAL *ki = p + 4 * padded * i + 2 * padded + from, *ki_ = p_ + 4 * padded * i + 2 * padded + from;
    REAL num_[64] = {0}, den_[64] = {0}, with_v_[64] = {0}, slopes_[64] = {0}, slopes[64] = {0};
    for (int32_t e = begin; e < end; e++) {
        if (e + AHEAD < limit) {
            const ptrdiff_t next = 4 * padded * (ptrdiff_t)other[e + AHEAD] + from;
            NAME(fetch)(p + next, width);
            NAME(fetch)(p + next + padded, width);
            NAME(fetch)(p_ + next, width);
            NAME(fetch)(p_ + next + padded, width);
        }
        const ptrdiff_t at = 4 * padded * (ptrdiff_t)other[e] + from;
        const REAL *qj = p + at, *vj = qj + padded, *qj_ = p_ + at, *vj_ = qj_ + padded;
        const REAL *ce = c.at ? c.at + c.stride * (ptrdiff_t)edge[e] + from : ZEROS;
        SIMD
        for (ptrdiff_t x = 0; x < width; x++) {
            const REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]), slope = s * (1 - s);
            const REAL w = (ki_[x] + qj_[x]) * slope, bend = w * (1 - 2 * s);
            num_[x] += w * vj[x] + s * vj_[x];
            den_[x] += w;
            with_v_[x] += bend * vj[x] + slope * vj_[x];
            slopes_[x] += bend;
            slopes[x] += slope;
        }
    }
    const REAL *r = saved + 3 * padded * i + from, *over = r + padded, *R = over + padded;
    SIMD
    for (ptrdiff_t x = 0; x < width; x++) {
        const REAL shared = share * r[x], r_ = (num_[x] - shared * den_[x]) * over[x];
        const REAL shrink = share * den_[x] * over[x];
        out[x] = r_;
        out[padded + x] = shrink;
        out[2 * padded + x] = over[x] * (with_v_[x] - shared * slopes_[x] - share * r_ * slopes[x]) - shrink * R[x];
    }
}

/* p, p', c, [r over R], [mean, 1 / deviation], weight, bias, h' or nothing -> y', [r' (den' over) R'] and what the
   normalisation's derivative needs of u'; if asked for, y once more, which is as good as kept, f = silu(y) and f'. */
CLONES static void NAME(layer_dual_value)(
    NAME(Piece) piece, const REAL *p, const REAL *p_, NAME(In) c, const REAL *saved, const REAL *stats,
    const REAL *weight, const REAL *bias, NAME(In) h, NAME(In) h_, NAME(Out) y, NAME(Out) f, NAME(Out) y_, NAME(Out) f_,
    REAL *saved_, REAL *stats_)
{
    UNPACK;
    REAL *restrict x = room, *restrict x_ = x + padded, *restrict at = x_ + padded, *restrict at_ = at + padded;
    (void)inside;
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *own = p + 4 * padded * i + 3 * padded, *own_ = p_ + 4 * padded * i + 3 * padded;
        const REAL *r = saved + 3 * padded * i;
        REAL *restrict r_ = saved_ + 3 * padded * i;
        const REAL mean = stats[2 * i], inverse = stats[2 * i + 1];
#define DO(n)                                                                                                          \
        NAME(dual_sums_of)(n, piece.ptr[i], piece.ptr[i + 1], limit, from, padded, piece.other, piece.edge, p, p_, c,  \
                           i, saved, piece.share, r_ + from)
        IN_BLOCKS(DO)
#undef DO
        REAL A[LANES] = {0}, B[LANES] = {0};
        for (ptrdiff_t from = 0; from < padded; from += LANES)
            SIMD
            for (ptrdiff_t l = 0; l < LANES; l++) {
                const ptrdiff_t m = from + l;
                x[m] = (own[m] + r[m] - mean) * inverse;
                x_[m] = own_[m] + r_[m];
                A[l] += x_[m];
                B[l] += x_[m] * x[m];
            }
        const REAL over_n = piece.normed ? 1 / (REAL)channels : 0;
        const REAL mean_ = NAME(add_up)(A) * over_n, q = NAME(add_up)(B) * over_n;
        stats_[2 * i] = mean_;
        stats_[2 * i + 1] = q;
        const REAL *hi = h.at ? NAME(padded_row)(stored, padded, ROW(h, i), at) : NULL;
        const REAL *hi_ = h_.at ? NAME(padded_row)(stored, padded, ROW(h_, i), at_) : NULL;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t);
            x_[m] = inverse * (x_[m] - mean_ - x[m] * q) * weight[m] * (s + t * s * (1 - s)) + (hi_ ? hi_[m] : 0);
            x[m] = t * s + (hi ? hi[m] : 0);
        }
        NAME(store)(stored, padded, x_, ROW(y_, i));
        if (y.at) {
            NAME(store)(stored, padded, x, ROW(y, i));
            SIMD
            for (ptrdiff_t m = 0; m < padded; m++) {
                const REAL s = NAME(sigmoid)(x[m]);
                x_[m] *= s + x[m] * s * (1 - s);
                x[m] *= s;
            }
            NAME(store)(stored, padded, x, ROW(f, i));
            NAME(store)(stored, padded, x_, ROW(f_, i));
        }
    }
}

/* p, p', [r over R], [r' (den' over) R'], what is kept of the normalisation and of its derivative, weight, bias, gy, gy'
   -> gy' once more, dk' and down' in dp', [gn gn']; sums of dweight', dbias', dk' and down'. With y and y', gy and gy' are
   the cotangent of silu(y) and its derivative. */
CLONES static void NAME(layer_dual_rows)(
    NAME(Piece) piece, const REAL *p, const REAL *p_, const REAL *saved, const REAL *saved_, const REAL *stats,
    const REAL *stats_, const REAL *weight, const REAL *bias, NAME(In) gy, NAME(In) gy_, NAME(In) y, NAME(In) y_,
    NAME(Out) again, REAL *dp_, REAL *gns, REAL *restrict sums)
{
    UNPACK;
    REAL *restrict at = room, *restrict at_ = at + padded, *restrict gt = at_ + padded, *restrict gt_ = gt + padded;
    REAL *restrict x = gt_ + padded, *restrict x_ = x + padded;
    REAL *restrict dweight = sums, *restrict dbias = sums + padded;
    REAL *restrict sum_k = dbias + padded, *restrict sum_own = sum_k + padded;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *own = p + 4 * padded * i + 3 * padded, *own_ = p_ + 4 * padded * i + 3 * padded;
        const REAL *r = saved + 3 * padded * i, *over = r + padded, *R = over + padded;
        const REAL *r_ = saved_ + 3 * padded * i, *shrink = r_ + padded, *R_ = shrink + padded;
        const REAL mean = stats[2 * i], inverse = stats[2 * i + 1], mean_ = stats_[2 * i], q = stats_[2 * i + 1];
        const REAL *g = NAME(padded_row)(stored, padded, ROW(gy, i), at);
        const REAL *g_ = gy_.at ? NAME(padded_row)(stored, padded, ROW(gy_, i), at_) : NULL;
        if (y.at) {
            const REAL *yi = NAME(padded_row)(stored, padded, ROW(y, i), gt);
            const REAL *yi_ = NAME(padded_row)(stored, padded, ROW(y_, i), gt_);
            SIMD
            for (ptrdiff_t m = 0; m < padded; m++) {
                const REAL s = NAME(sigmoid)(yi[m]), slope = s * (1 - s), f1 = s + yi[m] * slope;
                at_[m] = g_[m] * f1 + g[m] * yi_[m] * slope * (2 + yi[m] * (1 - 2 * s));
                at[m] = g[m] * f1;
            }
            g = at;
            g_ = at_;
        }
        if (again.at)
            NAME(store)(stored, padded, g_, ROW(again, i));
        REAL A[LANES] = {0}, A_[LANES] = {0}, B[LANES] = {0}, B_[LANES] = {0};
        for (ptrdiff_t from = 0; from < padded; from += LANES)
            SIMD
            for (ptrdiff_t l = 0; l < LANES; l++) {
                const ptrdiff_t m = from + l;
                x[m] = (own[m] + r[m] - mean) * inverse;
                x_[m] = inverse * (own_[m] + r_[m] - mean_ - x[m] * q);
                const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t), slope = s * (1 - s);
                const REAL f1 = s + t * slope, t_ = x_[m] * weight[m];
                const REAL of_t = g[m] * f1, of_t_ = (g_ ? g_[m] * f1 : 0) + g[m] * slope * (2 + t * (1 - 2 * s)) * t_;
                dweight[m] += of_t_ * x[m] + of_t * x_[m];
                dbias[m] += of_t_;
                gt[m] = of_t * weight[m];
                gt_[m] = of_t_ * weight[m];
                A[l] += gt[m];
                A_[l] += gt_[m];
                B[l] += gt[m] * x[m];
                B_[l] += gt_[m] * x[m] + gt[m] * x_[m];
            }
        const REAL over_n = piece.normed ? 1 / (REAL)channels : 0;
        const REAL a = NAME(add_up)(A) * over_n, a_ = NAME(add_up)(A_) * over_n;
        const REAL b = NAME(add_up)(B) * over_n, b_ = NAME(add_up)(B_) * over_n;
        REAL *restrict dk_ = dp_ + 4 * padded * i + 2 * padded, *restrict down_ = dk_ + padded;
        REAL *restrict gn = gns + 2 * padded * i, *restrict gn_ = gn + padded;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL gu = inverse * inside[m] * (gt[m] - a - x[m] * b);
            const REAL gu_ = inverse * inside[m] * (gt_[m] - a_ - x_[m] * b - x[m] * b_) - inverse * q * gu;
            gn[m] = gu * over[m];
            gn_[m] = (gu_ - gu * shrink[m]) * over[m];
            dk_[m] = gu_ * R[m] + gu * R_[m];
            down_[m] = gu_;
            sum_k[m] += dk_[m];
            sum_own[m] += gu_;
        }
    }
}

static ALWAYS_INLINE void NAME(dual_columns_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, const REAL *p_, NAME(In) c, const REAL *saved,
    const REAL *saved_, const REAL *gns, REAL share, ptrdiff_t j, REAL *restrict dqj, NAME(Out) dc, REAL *restrict sums)
{
    const REAL *qj = p + 4 * padded * j + from, *vj = qj + padded, *qj_ = p_ + 4 * padded * j + from, *vj_ = qj_ + padded;
    REAL of_q[64] = {0}, of_v[64] = {0}, unread[64] = {0};
    for (int32_t e = begin; e < end; e++) {
        if (e + AHEAD < limit) {
            const ptrdiff_t next = other[e + AHEAD];
            NAME(fetch)(p + 4 * padded * next + 2 * padded + from, width);
            NAME(fetch)(p_ + 4 * padded * next + 2 * padded + from, width);
            NAME(fetch)(saved + 3 * padded * next + from, width);
            NAME(fetch)(saved_ + 3 * padded * next + from, width);
            NAME(fetch)(gns + 2 * padded * next + from, width);
            NAME(fetch)(gns + 2 * padded * next + padded + from, width);
        }
        const ptrdiff_t i = other[e];
        const REAL *ki = p + 4 * padded * i + 2 * padded + from, *ki_ = p_ + 4 * padded * i + 2 * padded + from;
        const REAL *ri = saved + 3 * padded * i + from, *ri_ = saved_ + 3 * padded * i + from;
        const REAL *gn = gns + 2 * padded * i + from, *gn_ = gn + padded;
        const REAL *ce = c.at ? c.at + c.stride * (ptrdiff_t)edge[e] + from : ZEROS;
        REAL *dce = dc.at ? dc.at + dc.stride * (ptrdiff_t)edge[e] + from : unread;
        SIMD
        for (ptrdiff_t x = 0; x < width; x++) {
            const REAL s = NAME(sigmoid)(ki[x] + qj[x] + ce[x]), slope = s * (1 - s);
            const REAL w = ki_[x] + qj_[x], apart = vj[x] - share * ri[x];
            const REAL t = slope * (gn_[x] * apart + gn[x] * (vj_[x] - share * ri_[x] + apart * w * (1 - 2 * s)));
            of_q[x] += t;
            of_v[x] += gn_[x] * s + gn[x] * w * slope;
            dce[x] += t;
        }
    }
    SIMD
    for (ptrdiff_t x = 0; x < width; x++) {
        dqj[x] = of_q[x];
        dqj[padded + x] = of_v[x];
        sums[x] += of_q[x];
        sums[padded + x] += of_v[x];
    }
}

/* p, p', c, [r over R], [r' (den' over) R'], [gn gn'] -> dq' and dv' in dp', dc'; sums of dq' and dv'. By source. */
CLONES static void NAME(layer_dual_columns)(
    NAME(Piece) piece, const REAL *p, const REAL *p_, NAME(In) c, const REAL *saved, const REAL *saved_,
    const REAL *gns, REAL *dp_, NAME(Out) dc, REAL *restrict sums)
{
    const ptrdiff_t padded = piece.padded;
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t j = piece.first; j < piece.last; j++) {
#define DO(n)                                                                                                          \
        NAME(dual_columns_of)(n, piece.ptr[j], piece.ptr[j + 1], limit, from, padded, piece.other, piece.edge, p, p_,  \
                              c, saved, saved_, gns, piece.share, j, dp_ + 4 * padded * j + from, dc, sums + from)
        IN_BLOCKS(DO)
#undef DO
    }
}

/* The head of an energy: v = <silu(t), weight> + bias, density v^2; and gt, the gradient of seed v^2 in t. Adds the bias
   of t to it. */
CLONES static void NAME(head_value)(
    NAME(Piece) piece, REAL *t, const REAL *bias_t, const REAL *weight, const REAL *bias, const REAL *seed, REAL *density,
    REAL *gt)
{
    const ptrdiff_t padded = piece.padded & -(ptrdiff_t)LANES;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        REAL *restrict ti = t + padded * i, *restrict g = gt + padded * i;
        REAL lane[LANES] = {0};
        for (ptrdiff_t from = 0; from < padded; from += LANES)
            SIMD
            for (ptrdiff_t l = 0; l < LANES; l++) {
                const ptrdiff_t m = from + l;
                ti[m] += bias_t[m];
                const REAL s = NAME(sigmoid)(ti[m]);
                lane[l] += ti[m] * s * weight[m];
                g[m] = weight[m] * (s + ti[m] * s * (1 - s));
            }
        const REAL v = NAME(add_up)(lane) + *bias, gv = 2 * v * (seed ? seed[i] : 1);
        density[i] = v * v;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            g[m] *= gv;
    }
}

/* gt once more, and its derivative along t' and along a change of the seeds; sums of those of the gradients in weight, in t
   and, as the first entry, in bias. */
CLONES static void NAME(head_dual)(
    NAME(Piece) piece, const REAL *t, const REAL *t_, const REAL *weight, const REAL *bias, const REAL *seed,
    NAME(In) seed_, REAL *gt, REAL *gt_, REAL *restrict sums)
{
    const ptrdiff_t padded = piece.padded & -(ptrdiff_t)LANES;
    REAL *restrict f0 = piece.room, *restrict f1 = f0 + padded, *restrict f1_ = f1 + padded, *restrict f2_ = f1_ + padded;
    REAL *restrict dweight = sums, *restrict dt = dweight + padded, *restrict dbias = dt + padded;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *ti = t + padded * i, *ti_ = t_ + padded * i;
        REAL *restrict g = gt + padded * i, *restrict g_ = gt_ + padded * i;
        REAL lane[LANES] = {0}, lane_[LANES] = {0};
        for (ptrdiff_t from = 0; from < padded; from += LANES)
            SIMD
            for (ptrdiff_t l = 0; l < LANES; l++) {
                const ptrdiff_t m = from + l;
                const REAL s = NAME(sigmoid)(ti[m]), slope = s * (1 - s);
                f0[m] = ti[m] * s;
                f1[m] = s + ti[m] * slope;
                f1_[m] = f1[m] * ti_[m];
                f2_[m] = slope * (2 + ti[m] * (1 - 2 * s)) * ti_[m];
                lane[l] += f0[m] * weight[m];
                lane_[l] += f1_[m] * weight[m];
            }
        const REAL v = NAME(add_up)(lane) + *bias, v_ = NAME(add_up)(lane_);
        const REAL m_i = seed ? seed[i] : 1, gv = 2 * v * m_i;
        const REAL gv_ = 2 * v_ * m_i + (seed_.at ? 2 * v * *ROW(seed_, i) : 0);
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            g[m] = weight[m] * gv * f1[m];
            g_[m] = weight[m] * (gv_ * f1[m] + gv * f2_[m]);
            dweight[m] += gv_ * f0[m] + gv * f1_[m];
            dt[m] += g_[m];
        }
        dbias[0] += gv_;
    }
}

#undef IN_BLOCKS
