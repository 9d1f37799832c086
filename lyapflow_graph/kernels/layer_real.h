/* A whole gated layer for one floating point type: what happens between two matrix products, with the derivatives that
   a step along the gradient of an energy needs. Included twice, after gated_real.h and update_real.h.

   With p = [q v k own] of every node, and s the sigmoid of z = k_i + q_j + c_ij for an edge from j to i,

       num = sum_j s v_j,   over = 1 / (sum_j s + CLOSED),   r = num over,   u = own + r,   y = h + silu(norm(u)).

   All that a node's derivative in its own k needs is one more number for each channel, which a second pass over its
   edges would otherwise compute again:

       R = du / dk = over (sum_j s' v_j - r sum_j s'),     s' = s (1 - s).

   backward    of a cotangent gy of y, with gu that of u and gn = gu over:
                   dk = gu R,   down = gu,   dq_j = sum_i gn_i (v_j - r_i) s',   dv_j = sum_i gn_i s;
   dual value  the derivative of all of the above along p', with w = k'_i + q'_j and s'' = s' (1 - 2 s):
                   num' = sum_j w s' v_j + s v'_j,   den' = sum_j w s',   r' = (num' - r den') over,
                   R' = over (sum_j (w s'' v_j + s' v'_j) - r sum_j w s'' - r' sum_j s') - over den' R;
   dual backward  the derivative of the backward along p' and gy', with gn' = (gu' - gu den' over) over:
                   dk' = gu' R + gu R',   down' = gu',
                   dq'_j = sum_i (gn' (v - r) + gn (v' - r')) s' + gn (v - r) w s'',   dv'_j = sum_i gn' s + gn w s'.

   A prime on a quantity is its derivative along the given direction: a trailing underscore in the code.

   Rows of p and of the other buffers made here are as wide as `padded` says, a multiple of LANES, and entries beyond
   the channels are finite and of no consequence: the loops over edges then need no remainders.
*/

/* Loops over edges are compiled for these widths, with sums in registers where they fit. */
#define IN_BLOCKS(DO)                                                                                                  \
    for (ptrdiff_t from = 0, width; from < padded; from += width) {                                                    \
        const ptrdiff_t left = padded - from;                                                                          \
        width = left >= 64 ? 64 : left >= 32 ? 32 : left >= 16 ? 16 : 8;                                               \
        switch (width) {                                                                                               \
        case 64: DO(64); break;                                                                                        \
        case 32: DO(32); break;                                                                                        \
        case 16: DO(16); break;                                                                                        \
        default: DO(8);                                                                                                \
        }                                                                                                              \
    }

typedef struct {
    ptrdiff_t first, last, channels, padded;
    const int32_t *ptr, *other, *edge;
    REAL *restrict room;
} NAME(Piece);

#define UNPACK                                                                                                         \
    const ptrdiff_t channels = piece.channels, padded = piece.padded;                                                  \
    (void)channels

/* num, den and the sums of s' v and s' of one node. */
static ALWAYS_INLINE void NAME(sums_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, NAME(In) c, const REAL *ki, REAL *restrict out)
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
        const REAL over = 1 / (den[x] + (REAL)CLOSED), r = num[x] * over;
        out[x] = r;
        out[padded + x] = over;
        out[2 * padded + x] = over * (with_v[x] - r * slopes[x]);
    }
}

/* p, c, the normalisation's weight and bias, h or nothing -> y, silu(y) if asked for, and [r over R]. */
CLONES static void NAME(layer_value)(
    NAME(Piece) piece, const REAL *p, NAME(In) c, const REAL *weight, const REAL *bias, NAME(In) h,
    NAME(Out) y, NAME(Out) f, REAL *saved)
{
    UNPACK;
    REAL *restrict x = piece.room, *restrict spare = x + padded;
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *row = p + 4 * padded * i;
        REAL *restrict out = saved ? saved + 3 * padded * i : spare;
#define DO(n)                                                                                                          \
        NAME(sums_of)(n, piece.ptr[i], piece.ptr[i + 1], limit, from, padded, piece.other, piece.edge, p, c,           \
                      row + 2 * padded + from, out + from)
        IN_BLOCKS(DO)
#undef DO
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            x[m] = row[3 * padded + m] + out[m];
        NAME(normalise)(channels, padded, x);
        NAME(activate)(padded, x, weight, bias);
        if (h.at) {
            const REAL *hi = h.at + h.stride * i;
            SIMD
            for (ptrdiff_t m = 0; m < channels; m++)
                x[m] += hi[m];
        }
        memcpy(y.at + y.stride * i, x, (size_t)channels * sizeof(REAL));
        if (f.at) {
            SIMD
            for (ptrdiff_t m = 0; m < padded; m++)
                x[m] *= NAME(sigmoid)(x[m]);
            memcpy(f.at + f.stride * i, x, (size_t)channels * sizeof(REAL));
        }
    }
}

/* p, [r over R], weight, bias, gy -> dk and down in dp, gn; sums of dweight and dbias. */
CLONES static void NAME(layer_backward_rows)(
    NAME(Piece) piece, const REAL *p, const REAL *saved, const REAL *weight, const REAL *bias, NAME(In) gy,
    REAL *dp, REAL *gn, REAL *restrict dweight, REAL *restrict dbias)
{
    UNPACK;
    REAL *restrict x = piece.room, *restrict g = x + padded;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *row = p + 4 * padded * i, *r = saved + 3 * padded * i, *over = r + padded, *R = over + padded;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            x[m] = row[3 * padded + m] + r[m];
        const REAL inverse = NAME(normalise)(channels, padded, x);
        NAME(load)(channels, padded, gy.at + gy.stride * i, g);
        REAL *restrict dk = dp + 4 * padded * i + 2 * padded, *restrict down = dk + padded;
        REAL *restrict gni = gn + padded * i;
        NAME(norm_backward)(channels, padded, x, inverse, weight, bias, g, down, dweight, dbias);
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            gni[m] = down[m] * over[m];
            dk[m] = down[m] * R[m];
        }
    }
}

static ALWAYS_INLINE void NAME(columns_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, NAME(In) c, const REAL *saved, const REAL *gn,
    const REAL *qj, REAL *restrict dqj, NAME(Out) dc)
{
    const REAL *vj = qj + padded;
    REAL of_q[64] = {0}, of_v[64] = {0}, unread[64];
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
            const REAL t = gni[x] * (vj[x] - ri[x]) * (s * (1 - s));
            of_q[x] += t;
            of_v[x] += gni[x] * s;
            dce[x] = t;
        }
    }
    memcpy(dqj, of_q, (size_t)width * sizeof(REAL));
    memcpy(dqj + padded, of_v, (size_t)width * sizeof(REAL));
}

/* p, c, [r over R], gn -> dq and dv in dp, dc. By source. */
CLONES static void NAME(layer_backward_columns)(
    NAME(Piece) piece, const REAL *p, NAME(In) c, const REAL *saved, const REAL *gn, REAL *dp, NAME(Out) dc)
{
    UNPACK;
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t j = piece.first; j < piece.last; j++) {
#define DO(n)                                                                                                          \
        NAME(columns_of)(n, piece.ptr[j], piece.ptr[j + 1], limit, from, padded, piece.other, piece.edge, p, c, saved, \
                         gn, p + 4 * padded * j + from, dp + 4 * padded * j + from, dc)
        IN_BLOCKS(DO)
#undef DO
    }
}

static ALWAYS_INLINE void NAME(dual_sums_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, const REAL *p_, NAME(In) c, ptrdiff_t i,
    const REAL *saved, REAL *restrict out)
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
        const REAL r_ = (num_[x] - r[x] * den_[x]) * over[x], shrink = den_[x] * over[x];
        out[x] = r_;
        out[padded + x] = shrink;
        out[2 * padded + x] = over[x] * (with_v_[x] - r[x] * slopes_[x] - r_ * slopes[x]) - shrink * R[x];
    }
}

/* p, p', c, [r over R], weight, bias, h' or nothing -> y', and [r' (den' over) R']. */
CLONES static void NAME(layer_dual_value)(
    NAME(Piece) piece, const REAL *p, const REAL *p_, NAME(In) c, const REAL *saved, const REAL *weight,
    const REAL *bias, NAME(In) h_, NAME(Out) y_, REAL *saved_)
{
    UNPACK;
    REAL *restrict x = piece.room, *restrict x_ = x + padded;
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *own = p + 4 * padded * i + 3 * padded, *own_ = p_ + 4 * padded * i + 3 * padded;
        const REAL *r = saved + 3 * padded * i;
        REAL *restrict r_ = saved_ + 3 * padded * i;
#define DO(n)                                                                                                          \
        NAME(dual_sums_of)(n, piece.ptr[i], piece.ptr[i + 1], limit, from, padded, piece.other, piece.edge, p, p_, c,  \
                           i, saved, r_ + from)
        IN_BLOCKS(DO)
#undef DO
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            x[m] = own[m] + r[m];
            x_[m] = own_[m] + r_[m];
        }
        const REAL inverse = NAME(normalise)(channels, padded, x);
        NAME(normalise_dual)(channels, padded, x, inverse, x_);
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL t = x[m] * weight[m] + bias[m], s = NAME(sigmoid)(t);
            x_[m] *= weight[m] * (s + t * s * (1 - s));
        }
        if (h_.at) {
            const REAL *hi = h_.at + h_.stride * i;
            SIMD
            for (ptrdiff_t m = 0; m < channels; m++)
                x_[m] += hi[m];
        }
        memcpy(y_.at + y_.stride * i, x_, (size_t)channels * sizeof(REAL));
    }
}

/* p, p', [r over R], [r' (den' over) R'], weight, bias, gy, gy' -> dk' and down' in dp', gn, gn'; sums of dweight' and
   dbias'. */
CLONES static void NAME(layer_dual_rows)(
    NAME(Piece) piece, const REAL *p, const REAL *p_, const REAL *saved, const REAL *saved_, const REAL *weight,
    const REAL *bias, NAME(In) gy, NAME(In) gy_, REAL *dp_, REAL *gns, REAL *restrict dweight, REAL *restrict dbias)
{
    UNPACK;
    REAL *restrict x = piece.room, *restrict x_ = x + padded, *restrict g = x_ + padded, *restrict g_ = g + padded;
    REAL *restrict gu = g_ + padded;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *own = p + 4 * padded * i + 3 * padded, *own_ = p_ + 4 * padded * i + 3 * padded;
        const REAL *r = saved + 3 * padded * i, *over = r + padded, *R = over + padded;
        const REAL *r_ = saved_ + 3 * padded * i, *shrink = r_ + padded, *R_ = shrink + padded;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            x[m] = own[m] + r[m];
            x_[m] = own_[m] + r_[m];
        }
        const REAL inverse = NAME(normalise)(channels, padded, x);
        const REAL q = NAME(normalise_dual)(channels, padded, x, inverse, x_);
        NAME(load)(channels, padded, gy.at + gy.stride * i, g);
        NAME(load)(channels, padded, gy_.at + gy_.stride * i, g_);
        REAL *restrict dk_ = dp_ + 4 * padded * i + 2 * padded, *restrict down_ = dk_ + padded;
        REAL *restrict gn = gns + 2 * padded * i, *restrict gn_ = gn + padded;
        NAME(norm_dual)(channels, padded, x, x_, inverse, q, weight, bias, NULL, NULL, g, g_, gu, down_, NULL, dweight, dbias);
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            gn[m] = gu[m] * over[m];
            gn_[m] = (down_[m] - gu[m] * shrink[m]) * over[m];
            dk_[m] = down_[m] * R[m] + gu[m] * R_[m];
        }
    }
}

static ALWAYS_INLINE void NAME(dual_columns_of)(
    const ptrdiff_t width, int32_t begin, int32_t end, int32_t limit, ptrdiff_t from, ptrdiff_t padded,
    const int32_t *other, const int32_t *edge, const REAL *p, const REAL *p_, NAME(In) c, const REAL *saved,
    const REAL *saved_, const REAL *gns, ptrdiff_t j, REAL *restrict dqj, NAME(Out) dc)
{
    const REAL *qj = p + 4 * padded * j + from, *vj = qj + padded, *qj_ = p_ + 4 * padded * j + from, *vj_ = qj_ + padded;
    REAL of_q[64] = {0}, of_v[64] = {0}, unread[64];
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
            const REAL w = ki_[x] + qj_[x], apart = vj[x] - ri[x];
            const REAL t = slope * (gn_[x] * apart + gn[x] * (vj_[x] - ri_[x] + apart * w * (1 - 2 * s)));
            of_q[x] += t;
            of_v[x] += gn_[x] * s + gn[x] * w * slope;
            dce[x] = t;
        }
    }
    memcpy(dqj, of_q, (size_t)width * sizeof(REAL));
    memcpy(dqj + padded, of_v, (size_t)width * sizeof(REAL));
}

/* p, p', c, [r over R], [r' (den' over) R'], [gn gn'] -> dq' and dv' in dp', dc'. By source. */
CLONES static void NAME(layer_dual_columns)(
    NAME(Piece) piece, const REAL *p, const REAL *p_, NAME(In) c, const REAL *saved, const REAL *saved_,
    const REAL *gns, REAL *dp_, NAME(Out) dc)
{
    UNPACK;
    const int32_t limit = piece.ptr[piece.last];
    for (ptrdiff_t j = piece.first; j < piece.last; j++) {
#define DO(n)                                                                                                          \
        NAME(dual_columns_of)(n, piece.ptr[j], piece.ptr[j + 1], limit, from, padded, piece.other, piece.edge, p, p_,  \
                              c, saved, saved_, gns, j, dp_ + 4 * padded * j + from, dc)
        IN_BLOCKS(DO)
#undef DO
    }
}

/* The head of an energy: v = <silu(t), weight> + bias, density v^2; and gt, the gradient of seed v^2 in t. */
CLONES static void NAME(head_value)(
    NAME(Piece) piece, const REAL *t, const REAL *weight, const REAL *bias, const REAL *seed, REAL *density, REAL *gt)
{
    UNPACK;
    REAL *restrict f0 = piece.room;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *ti = t + padded * i;
        REAL *restrict g = gt + padded * i;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL s = NAME(sigmoid)(ti[m]);
            f0[m] = ti[m] * s;
            g[m] = weight[m] * (s + ti[m] * s * (1 - s));
        }
        const REAL v = NAME(dot)(padded, f0, weight) + *bias;
        density[i] = v * v;
        const REAL gv = 2 * v * (seed ? seed[i] : 1);
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++)
            g[m] *= gv;
    }
}

/* The derivative of gt along t' and along a change of the seeds; sums of those of the gradients in weight and bias. */
CLONES static void NAME(head_dual)(
    NAME(Piece) piece, const REAL *t, const REAL *t_, const REAL *weight, const REAL *bias, const REAL *seed,
    NAME(In) seed_, REAL *gt_, REAL *restrict dweight, REAL *restrict dbias)
{
    UNPACK;
    REAL *restrict f0 = piece.room, *restrict f1 = f0 + padded, *restrict f1_ = f1 + padded;
    REAL *restrict f2_ = f1_ + padded;
    for (ptrdiff_t i = piece.first; i < piece.last; i++) {
        const REAL *ti = t + padded * i, *ti_ = t_ + padded * i;
        REAL *restrict g_ = gt_ + padded * i;
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            const REAL s = NAME(sigmoid)(ti[m]), slope = s * (1 - s);
            f0[m] = ti[m] * s;
            f1[m] = s + ti[m] * slope;
            f1_[m] = f1[m] * ti_[m];
            f2_[m] = slope * (2 + ti[m] * (1 - 2 * s)) * ti_[m];
        }
        const REAL v = NAME(dot)(padded, f0, weight) + *bias, v_ = NAME(dot)(padded, f1_, weight);
        const REAL m_i = seed ? seed[i] : 1, gv = 2 * v * m_i;
        const REAL gv_ = 2 * v_ * m_i + (seed_.at ? 2 * v * seed_.at[seed_.stride * i] : 0);
        SIMD
        for (ptrdiff_t m = 0; m < padded; m++) {
            g_[m] = weight[m] * (gv_ * f1[m] + gv * f2_[m]);
            dweight[m] += gv_ * f0[m] + gv * f1_[m];
        }
        dbias[0] += gv_;
    }
}

#undef UNPACK
#undef IN_BLOCKS
