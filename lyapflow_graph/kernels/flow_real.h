/* A whole flow of TANGO on small graphs for one floating point type: all steps, forward and backward, of a block of graphs
   that fits in the cache. Included twice, after the other files, whose kernels it calls; flow.h has what does not
   depend on the type.

   Forward, from h = x_0 of the first layer, in each step:
       energy     layers of the energy's network -> y, f = silu(y); its head -> v^2 at every node, summed to V
       gradient   the backward of these -> g = dV/dh
       tangent    layers of the tangent's network, a linear map if there is one -> M
       velocity   alpha and beta from pooled f and M; -alpha g + beta (M made orthogonal to g)
       step       h + scale step_size velocity; under a guard the scale is halved while V grows.

   Backward, of cotangents of the last state, the states and the energies, in the reverse order. The derivative of g along
   a cotangent is that of an ordinary backward along a direction: layer_real.h has it. Whatever it needs of the
   forward pass is on the tape of the step, or is computed again.

   All rows are padded: a row of 30 channels has 32 entries, and the last two are zero throughout.
*/

typedef struct {
    const REAL *up, *down; /* vectors of the rows of W^T, and of W, one below the other: what products read in order */
    const REAL *bias;
} NAME(Map);

typedef struct {
    NAME(Map) map;      /* to [q v k own] */
    const REAL *biases; /* what the kernel of a layer adds: without that of v where gates are not normalised */
    const REAL *start;  /* what the product starts from: the bias of v there, else NULL */
    const REAL *norm_weight, *norm_bias;
} NAME(Gates);

typedef struct {
    NAME(Map) map;
    const REAL *out, *out_bias;
} NAME(Perceptron);

typedef struct {
    NAME(Gates) energy[MOST_LAYERS], tangent[MOST_LAYERS];
    NAME(Perceptron) head, alpha, beta;
    NAME(Map) linear;
} NAME(Weights);

/* Sums of derivatives in the weights; of a layer with biases as [norm_weight norm_bias k own] and [q v], of a perceptron
   [out bias out_bias], as the kernels have them. */
typedef struct {
    REAL *weight, *rows, *columns;
} NAME(GatesSlopes);

typedef struct {
    REAL *weight, *rows;
} NAME(MapSlopes);

typedef struct {
    NAME(GatesSlopes) energy[MOST_LAYERS], tangent[MOST_LAYERS];
    NAME(MapSlopes) head, alpha, beta, linear;
} NAME(Slopes);

/* What a step leaves for the backward. */
typedef struct {
    REAL *x, *p, *sums, *stats, *g, *dp;
} NAME(LayerTape);

typedef struct {
    NAME(LayerTape) energy[MOST_LAYERS], tangent[MOST_LAYERS];
    REAL *t, *g, *out, *M;                                  /* rows for nodes */
    REAL *pooled_f, *hidden_alpha, *pooled_M, *hidden_beta; /* rows for graphs */
    REAL *alpha, *beta;
    NAME(Shares) *shares;
} NAME(Tape);

/* What a thread works with. */
typedef struct {
    int32_t *ptr[2], *other[2], *edge[2]; /* edges by target and by source, of this block alone */
    int64_t *graph;                       /* of every node */
    int32_t *first;                       /* node of every graph, and one more */
    REAL *seed, *seed_, *density, *room, *unread, *of_rows;
    REAL *y, *f, *gt, *gn, *velocity;
    REAL *share, *energy, *trial, *scale; /* of every graph */
    NAME(Tape) tapes[2];
    /* for the backward */
    REAL *lam, *l, *dM, *dg, *lf, *again, *below, *dp;
    REAL *dual_x[MOST_LAYERS + 1], *dual_p[MOST_LAYERS], *dual_sums[MOST_LAYERS], *dual_stats[MOST_LAYERS];
    REAL *f_, *t_, *gt_, *gns;
    REAL *products, *dalpha, *dbeta, *dpooled, *dhidden;
} NAME(Work);

typedef struct {
    ptrdiff_t nodes, graphs, edges; /* how many */
    ptrdiff_t node, graph;          /* the first ones */
    REAL *tape;                     /* where that of the first step begins, if it is kept */
    NAME(Piece) by_target, by_source;
} NAME(Block);

#define ROWS_OF(x) ((NAME(In)){x, D})
#define INTO(x) ((NAME(Out)){x, D})
#define NO_ROWS ((NAME(In)){NULL, 0})
#define NOT_ASKED ((NAME(Out)){NULL, 0})
#define LEFT(x, width) ((NAME(Left)){x, width, 1})
#define TRANSPOSED(x, width) ((NAME(Left)){x, 1, width})
#define PANELS(x, depth) ((NAME(Right)){x, VECTOR, VECTOR *(depth)})
#define AS_ROWS(x) ((NAME(Right)){x, D, VECTOR})

/* -- memory ------------------------------------------------------------------------------------------------------------ */

static REAL *NAME(take)(REAL *at, ptrdiff_t *used, ptrdiff_t count)
{
    REAL *found = at ? at + *used : NULL;
    *used += (count + LANES - 1) / LANES * LANES;
    return found;
}

/* Lays out a tape at `at`, or nowhere, and gives its size. */
static ptrdiff_t NAME(lay_out_tape)(const Flow *flow, NAME(Tape) *tape, ptrdiff_t nodes, ptrdiff_t graphs, REAL *at)
{
    const ptrdiff_t D = flow->padded, rows = nodes * D;
    ptrdiff_t used = 0;
#define TAKE(n) NAME(take)(at, &used, n)
    for (int l = 0; l < flow->energy_layers; l++) {
        NAME(LayerTape) *layer = tape->energy + l;
        *layer = (NAME(LayerTape)){TAKE(rows), TAKE(4 * rows), TAKE(3 * rows), TAKE(2 * nodes), TAKE(rows), TAKE(4 * rows)};
    }
    tape->t = TAKE(rows);
    tape->g = TAKE(rows);
    tape->pooled_f = TAKE(graphs * D);
    tape->hidden_alpha = TAKE(graphs * D);
    tape->alpha = TAKE(graphs);
    for (int l = 0; l < flow->tangent_layers; l++) {
        NAME(LayerTape) *layer = tape->tangent + l;
        *layer = (NAME(LayerTape)){l ? TAKE(rows) : tape->energy->x, TAKE(4 * rows), TAKE(3 * rows), TAKE(2 * nodes), NULL, NULL};
    }
    if (flow->tangent_layers) {
        tape->out = TAKE(rows);
        tape->M = flow->linear ? TAKE(rows) : tape->out;
        tape->pooled_M = TAKE(graphs * D);
        tape->hidden_beta = TAKE(graphs * D);
        tape->beta = TAKE(graphs);
        tape->shares = (NAME(Shares) *)TAKE(4 * graphs);
    }
    return used;
}

static ptrdiff_t NAME(lay_out_work)(const Flow *flow, NAME(Work) *work, REAL *at)
{
    const ptrdiff_t D = flow->padded, n = flow->most_nodes, graphs = flow->most_graphs, rows = n * D;
    ptrdiff_t used = 0;
    for (int order = 0; order < 2; order++) { /* integers are no larger than REAL, but for the graphs of floats */
        work->ptr[order] = (int32_t *)TAKE(n + 1);
        work->other[order] = (int32_t *)TAKE(flow->most_edges);
        work->edge[order] = (int32_t *)TAKE(flow->most_edges);
    }
    work->graph = (int64_t *)TAKE(2 * n);
    work->first = (int32_t *)TAKE(graphs + 1);
    work->seed = TAKE(n);
    work->seed_ = TAKE(n);
    work->density = TAKE(n);
    work->of_rows = TAKE(3 * n);
    work->room = TAKE(ROOM * D);
    work->unread = TAKE(6 * D);
    work->share = TAKE(graphs);
    work->energy = TAKE(graphs);
    work->trial = TAKE(graphs);
    work->scale = TAKE(graphs);
    work->y = TAKE(rows);
    work->f = TAKE(rows);
    work->gt = TAKE(rows);
    work->gn = TAKE(rows);
    work->velocity = TAKE(rows);
    const ptrdiff_t of_tape = NAME(lay_out_tape)(flow, work->tapes, n, graphs, NULL);
    for (int m = 0; m < 2; m++) {
        NAME(lay_out_tape)(flow, work->tapes + m, n, graphs, TAKE(of_tape));
    }
    if (!flow->backward)
        return used;
    REAL **of_nodes[] = {&work->lam, &work->l, &work->dM, &work->dg, &work->lf, &work->again, &work->below,
                         &work->f_, &work->t_, &work->gt_};
    for (size_t m = 0; m < sizeof of_nodes / sizeof *of_nodes; m++)
        *of_nodes[m] = TAKE(rows);
    work->dp = TAKE(4 * rows);
    work->gns = TAKE(2 * rows);
    work->products = TAKE(graphs);
    work->dalpha = TAKE(graphs);
    work->dbeta = TAKE(graphs);
    work->dpooled = TAKE(graphs * D);
    work->dhidden = TAKE(graphs * D);
    for (int l = 0; l < flow->energy_layers; l++) {
        work->dual_x[l] = TAKE(rows);
        work->dual_p[l] = TAKE(4 * rows);
        work->dual_sums[l] = TAKE(3 * rows);
        work->dual_stats[l] = TAKE(2 * n);
    }
    work->dual_x[flow->energy_layers] = TAKE(rows);
    return used;
}

static ptrdiff_t NAME(lay_out_slopes)(const Flow *flow, NAME(Slopes) *slopes, REAL *at)
{
    const ptrdiff_t D = flow->padded;
    ptrdiff_t used = 0;
    for (int l = 0; l < flow->energy_layers; l++)
        slopes->energy[l] = (NAME(GatesSlopes)){TAKE(4 * D * D), TAKE(4 * D), TAKE(2 * D)};
    slopes->head = (NAME(MapSlopes)){TAKE(D * D), TAKE(3 * D)};
    slopes->alpha = (NAME(MapSlopes)){TAKE(D * D), TAKE(3 * D)};
    for (int l = 0; l < flow->tangent_layers; l++)
        slopes->tangent[l] = (NAME(GatesSlopes)){TAKE(4 * D * D), TAKE(4 * D), TAKE(2 * D)};
    if (flow->tangent_layers) {
        if (flow->linear)
            slopes->linear = (NAME(MapSlopes)){TAKE(D * D), TAKE(D)};
        slopes->beta = (NAME(MapSlopes)){TAKE(D * D), TAKE(3 * D)};
    }
    return used;
}

/* -- weights, as the products read them ------------------------------------------------------------------------------- */

static NAME(Map) NAME(lay_out_map)(
    const Flow *flow, ptrdiff_t groups, const REAL *weight, const REAL *bias, REAL *at, ptrdiff_t *used_)
{
    const ptrdiff_t d = flow->channels, D = flow->padded, wide = groups * D;
    ptrdiff_t used = *used_;
    REAL *up = TAKE(d * wide), *down = TAKE(wide * D), *padded = TAKE(wide);
    *used_ = used;
    if (at)
        for (ptrdiff_t group = 0; group < groups; group++)
            for (ptrdiff_t out = 0; out < D; out++) {
                const ptrdiff_t m = group * D + out, own = group * d + out;
                padded[m] = out < d ? bias[own] : 0;
                for (ptrdiff_t k = 0; k < D; k++) {
                    const REAL w = out < d && k < d ? weight[own * d + k] : 0;
                    down[k / VECTOR * VECTOR * wide + m * VECTOR + k % VECTOR] = w;
                    if (k < d)
                        up[m / VECTOR * VECTOR * d + k * VECTOR + m % VECTOR] = w;
                }
            }
    return (NAME(Map)){up, down, padded};
}

static const REAL *NAME(lay_out_row)(const Flow *flow, const REAL *row, REAL missing, REAL *at, ptrdiff_t *used_)
{
    REAL *found = NAME(take)(at, used_, flow->padded);
    if (at)
        for (ptrdiff_t m = 0; m < flow->padded; m++)
            found[m] = m >= flow->channels ? 0 : row ? row[m] : missing;
    return found;
}

static NAME(Gates) NAME(lay_out_gates)(const Flow *flow, const void *const **given, REAL *at, ptrdiff_t *used)
{
    const REAL *weight = *(*given)++, *bias = *(*given)++, *norm_weight = *(*given)++, *norm_bias = *(*given)++;
    const ptrdiff_t D = flow->padded;
    NAME(Gates) gates = {.map = NAME(lay_out_map)(flow, 4, weight, bias, at, used)};
    REAL *biases = NAME(take)(at, used, 4 * D), *start = NAME(take)(at, used, 4 * D);
    if (at)
        for (ptrdiff_t m = 0; m < 4 * D; m++) {
            /* Every gate of a sum has the bias of v; that of a mean is one of the node, which the kernel adds. */
            const int early = !flow->share && m >= D && m < 2 * D;
            start[m] = early ? gates.map.bias[m] : 0;
            biases[m] = early ? 0 : gates.map.bias[m];
        }
    gates.biases = biases;
    gates.start = flow->share ? NULL : start;
    gates.norm_weight = NAME(lay_out_row)(flow, norm_weight, 1, at, used);
    gates.norm_bias = NAME(lay_out_row)(flow, norm_bias, 0, at, used);
    return gates;
}

static NAME(Perceptron) NAME(lay_out_perceptron)(const Flow *flow, const void *const **given, REAL *at, ptrdiff_t *used)
{
    const REAL *weight = *(*given)++, *bias = *(*given)++, *out = *(*given)++, *out_bias = *(*given)++;
    NAME(Perceptron) found = {.map = NAME(lay_out_map)(flow, 1, weight, bias, at, used), .out_bias = out_bias};
    found.out = NAME(lay_out_row)(flow, out, 0, at, used);
    return found;
}

static ptrdiff_t NAME(lay_out_weights)(const Flow *flow, NAME(Weights) *weights, REAL *at)
{
    const void *const *given = flow->weights;
    ptrdiff_t used = 0;
    for (int l = 0; l < flow->energy_layers; l++)
        weights->energy[l] = NAME(lay_out_gates)(flow, &given, at, &used);
    weights->head = NAME(lay_out_perceptron)(flow, &given, at, &used);
    weights->alpha = NAME(lay_out_perceptron)(flow, &given, at, &used);
    for (int l = 0; l < flow->tangent_layers; l++)
        weights->tangent[l] = NAME(lay_out_gates)(flow, &given, at, &used);
    if (flow->tangent_layers) {
        if (flow->linear) {
            const REAL *weight = *given++, *bias = *given++;
            weights->linear = NAME(lay_out_map)(flow, 1, weight, bias, at, &used);
        }
        weights->beta = NAME(lay_out_perceptron)(flow, &given, at, &used);
    }
    return used;
}

#undef TAKE

/* -- the derivatives in the weights, as they were given ---------------------------------------------------------------- */

/* Groups of padded rows without what is padded, one after the other; gives where the next go. */
static REAL *NAME(cut)(const Flow *flow, const REAL *padded, ptrdiff_t rows, ptrdiff_t groups, REAL *to)
{
    const ptrdiff_t d = flow->channels, D = flow->padded;
    for (ptrdiff_t group = 0; group < groups; group++)
        for (ptrdiff_t row = 0; row < rows; row++)
            for (ptrdiff_t m = 0; m < d; m++)
                *to++ = padded[(group * D + row) * D + m];
    return to;
}

static REAL *NAME(cut_gates)(const Flow *flow, const NAME(GatesSlopes) *slopes, REAL *to)
{
    const ptrdiff_t D = flow->padded;
    to = NAME(cut)(flow, slopes->weight, flow->channels, 4, to);
    to = NAME(cut)(flow, slopes->columns, 2, 1, to);
    to = NAME(cut)(flow, slopes->rows + 2 * D, 2, 1, to);
    return flow->normed ? NAME(cut)(flow, slopes->rows, 2, 1, to) : to;
}

static REAL *NAME(cut_perceptron)(const Flow *flow, const NAME(MapSlopes) *slopes, REAL *to)
{
    const ptrdiff_t D = flow->padded;
    to = NAME(cut)(flow, slopes->weight, flow->channels, 1, to);
    to = NAME(cut)(flow, slopes->rows + D, 1, 1, to);
    to = NAME(cut)(flow, slopes->rows, 1, 1, to);
    *to++ = slopes->rows[2 * D];
    return to;
}

static void NAME(cut_slopes)(const Flow *flow, const NAME(Slopes) *slopes, REAL *to)
{
    for (int l = 0; l < flow->energy_layers; l++)
        to = NAME(cut_gates)(flow, slopes->energy + l, to);
    to = NAME(cut_perceptron)(flow, &slopes->head, to);
    to = NAME(cut_perceptron)(flow, &slopes->alpha, to);
    for (int l = 0; l < flow->tangent_layers; l++)
        to = NAME(cut_gates)(flow, slopes->tangent + l, to);
    if (flow->tangent_layers) {
        if (flow->linear) {
            to = NAME(cut)(flow, slopes->linear.weight, flow->channels, 1, to);
            to = NAME(cut)(flow, slopes->linear.rows, 1, 1, to);
        }
        NAME(cut_perceptron)(flow, &slopes->beta, to);
    }
}

/* -- parts of a step --------------------------------------------------------------------------------------------------- */

static void NAME(local_edges)(const Flow *flow, const NAME(Block) *block, NAME(Work) *work)
{
    const int32_t *packed = flow->packed;
    for (int order = 0; order < 2; order++, packed += flow->nodes + 1 + 2 * flow->edges) {
        const int32_t *ptr = packed + block->node, *other = packed + flow->nodes + 1 + ptr[0], *edge = other + flow->edges;
        for (ptrdiff_t i = 0; i <= block->nodes; i++)
            work->ptr[order][i] = ptr[i] - ptr[0];
        for (ptrdiff_t e = 0; e < block->edges; e++) {
            work->other[order][e] = (int32_t)(other[e] - block->node);
            work->edge[order][e] = edge[e];
        }
    }
}

static NAME(Block) NAME(begin_block)(const Flow *flow, ptrdiff_t number, NAME(Work) *work)
{
    const int64_t *ptr = flow->graph_ptr;
    const ptrdiff_t first = flow->block_begins[number], last = flow->block_begins[number + 1];
    NAME(Block) block = {.nodes = (ptrdiff_t)(ptr[last] - ptr[first]), .graphs = last - first, .node = (ptrdiff_t)ptr[first],
                         .graph = first, .tape = flow->tape ? (REAL *)flow->tape + flow->block_tapes[number] : NULL};
    block.edges = flow->packed[ptr[last]] - flow->packed[ptr[first]];
    NAME(local_edges)(flow, &block, work);
    for (ptrdiff_t k = 0; k < block.graphs; k++) {
        const int64_t size = ptr[first + k + 1] - ptr[first + k];
        work->share[k] = 1 / (REAL)(size > 0 ? size : 1);
        work->first[k] = (int32_t)(ptr[first + k] - block.node);
        for (ptrdiff_t i = 0; i < size; i++) {
            work->graph[work->first[k] + i] = k;
            work->seed[work->first[k] + i] = flow->mean ? work->share[k] : 1;
        }
    }
    work->first[block.graphs] = (int32_t)block.nodes;
    for (int order = 0; order < 2; order++) {
        NAME(Piece) piece = {0, block.nodes, flow->channels, flow->padded, flow->padded, work->ptr[order], work->other[order],
                             work->edge[order], work->room, flow->share, flow->share ? (REAL)CLOSED : 1, flow->normed};
        *(order ? &block.by_source : &block.by_target) = piece;
    }
    return block;
}

/* Rows as they are given, in padded ones, and back. */
static void NAME(read_rows)(const Flow *flow, ptrdiff_t rows, const REAL *from, REAL *to)
{
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t m = 0; m < flow->padded; m++)
            to[i * flow->padded + m] = m < flow->channels ? from[i * flow->channels + m] : 0;
}

static void NAME(write_rows)(const Flow *flow, ptrdiff_t rows, const REAL *from, REAL *to)
{
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t m = 0; m < flow->channels; m++)
            to[i * flow->channels + m] = from[i * flow->padded + m];
}

static NAME(In) NAME(of_edges)(const Flow *flow, const REAL *c) { return (NAME(In)){c, c ? flow->padded : 0}; }

/* The value of layers, whose input is on the tape; y of the last, and silu(y) if asked for. */
static void NAME(layers_value)(
    const Flow *flow, const NAME(Block) *block, int layers, const NAME(Gates) *gates, const NAME(LayerTape) *tape,
    const REAL *c, REAL *y, REAL *f)
{
    const ptrdiff_t n = block->nodes, d = flow->channels, D = flow->padded;
    for (int l = 0; l < layers; l++) {
        const NAME(LayerTape) *own = tape + l;
        const int last = l + 1 == layers;
        NAME(product)(n, 4 * D, d, LEFT(own->x, D), PANELS(gates[l].map.up, d), gates[l].start, 0, own->p, 4 * D);
        NAME(layer_value)(block->by_target, own->p, NAME(of_edges)(flow, c), gates[l].biases, gates[l].norm_weight,
                          gates[l].norm_bias, flow->residual ? ROWS_OF(own->x) : NO_ROWS, INTO(last ? y : tape[l + 1].x),
                          last && f ? INTO(f) : NOT_ASKED, own->sums, own->stats);
    }
}

/* The backward of layers, given the cotangent of y; or, with y, that of silu(y). The derivative in their input is in
   `below`. */
static void NAME(layers_backward)(
    const Flow *flow, const NAME(Block) *block, NAME(Work) *work, int layers, const NAME(Gates) *gates,
    const NAME(LayerTape) *tape, const REAL *c, REAL *dc, const REAL *gy, const REAL *y, const NAME(GatesSlopes) *slopes)
{
    const ptrdiff_t n = block->nodes, D = flow->padded;
    REAL *dp = work->dp, *below = work->below;
    for (int l = layers - 1; l >= 0; l--) {
        const NAME(LayerTape) *own = tape + l;
        NAME(layer_backward_rows)(block->by_target, own->p, own->sums, own->stats, gates[l].norm_weight, gates[l].norm_bias,
                                  ROWS_OF(gy), y && l + 1 == layers ? ROWS_OF(y) : NO_ROWS,
                                  flow->residual ? INTO(work->again) : NOT_ASKED, dp, work->gn, slopes[l].rows);
        NAME(layer_backward_columns)(block->by_source, own->p, NAME(of_edges)(flow, c), own->sums, work->gn, dp,
                                     dc ? INTO(dc) : NOT_ASKED, slopes[l].columns);
        NAME(product)(4 * D, D, n, TRANSPOSED(dp, 4 * D), AS_ROWS(own->x), slopes[l].weight, D, slopes[l].weight, D);
        NAME(product)(n, D, 4 * D, LEFT(dp, 4 * D), PANELS(gates[l].map.down, 4 * D), flow->residual ? work->again : NULL, D,
                      below, D);
        gy = below;
    }
}

/* The energy at the state on the tape: of every graph in `energy`, and y, f and the head's gradient gt for what follows. */
static void NAME(energy_value)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Tape) *tape,
    REAL *energy)
{
    const ptrdiff_t n = block->nodes, d = flow->channels, D = flow->padded;
    const NAME(Perceptron) *head = &weights->head;
    NAME(layers_value)(flow, block, flow->energy_layers, weights->energy, tape->energy, flow->energy_c, work->y, work->f);
    NAME(product)(n, D, d, LEFT(work->f, D), PANELS(head->map.up, d), NULL, 0, tape->t, D);
    NAME(head_value)(block->by_target, tape->t, head->map.bias, head->out, head->out_bias, work->seed, work->density, work->gt);
    for (ptrdiff_t k = 0; k < block->graphs; k++) {
        REAL sum = 0;
        for (int32_t i = work->first[k]; i < work->first[k + 1]; i++)
            sum += work->density[i];
        energy[k] = flow->mean ? sum * work->share[k] : sum;
    }
}

static void NAME(energy_gradient)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Tape) *tape)
{
    const ptrdiff_t n = block->nodes, D = flow->padded;
    const int last = flow->energy_layers - 1;
    memset(work->unread, 0, (size_t)(6 * D) * sizeof(REAL));
    NAME(product)(n, D, D, LEFT(work->gt, D), PANELS(weights->head.map.down, D), NULL, 0, tape->energy[last].g, D);
    for (int l = last; l >= 0; l--) {
        const NAME(LayerTape) *own = tape->energy + l;
        const NAME(Gates) *gates = weights->energy + l;
        REAL *below = l ? own[-1].g : tape->g;
        NAME(layer_backward_rows)(block->by_target, own->p, own->sums, own->stats, gates->norm_weight, gates->norm_bias,
                                  ROWS_OF(own->g), l == last ? ROWS_OF(work->y) : NO_ROWS,
                                  flow->residual ? INTO(below) : NOT_ASKED, own->dp, work->gn, work->unread);
        NAME(layer_backward_columns)(block->by_source, own->p, NAME(of_edges)(flow, flow->energy_c), own->sums, work->gn,
                                     own->dp, NOT_ASKED, work->unread + 4 * D);
        NAME(product)(n, D, 4 * D, LEFT(own->dp, 4 * D), PANELS(gates->map.down, 4 * D), flow->residual ? below : NULL, D,
                      below, D);
    }
}

/* A coefficient of every graph from rows of its nodes: what is pooled, and the hidden layer before its activation. */
CLONES static void NAME(pooled_value)(
    const Flow *flow, const NAME(Perceptron) *mlp, const NAME(Block) *block, const NAME(Work) *work, const REAL *rows,
    REAL *pooled, REAL *hidden, REAL *value)
{
    const ptrdiff_t d = flow->channels, D = flow->padded;
    for (ptrdiff_t k = 0; k < block->graphs; k++) {
        REAL *restrict to = pooled + k * D;
        for (ptrdiff_t m = 0; m < D; m++)
            to[m] = 0;
        for (int32_t i = work->first[k]; i < work->first[k + 1]; i++)
            SIMD
            for (ptrdiff_t m = 0; m < D; m++)
                to[m] += rows[i * D + m];
        if (flow->pool_mean)
            for (ptrdiff_t m = 0; m < D; m++)
                to[m] *= work->share[k];
    }
    NAME(product)(block->graphs, D, d, LEFT(pooled, D), PANELS(mlp->map.up, d), mlp->map.bias, 0, hidden, D);
    for (ptrdiff_t k = 0; k < block->graphs; k++) {
        const REAL *t = hidden + k * D;
        REAL lane[LANES] = {0};
        for (ptrdiff_t from = 0; from < D; from += LANES)
            SIMD
            for (ptrdiff_t m = 0; m < LANES; m++)
                lane[m] += t[from + m] * NAME(sigmoid)(t[from + m]) * mlp->out[from + m];
        value[k] = NAME(add_up)(lane) + *mlp->out_bias;
    }
}

/* Given the derivative in the value: adds those in the weights, and writes those in the rows of the nodes or adds them. */
CLONES static void NAME(pooled_backward)(
    const Flow *flow, const NAME(Perceptron) *mlp, const NAME(Block) *block, NAME(Work) *work, const REAL *pooled,
    const REAL *hidden, const REAL *dvalue, const NAME(MapSlopes) *slopes, int add, REAL *rows)
{
    const ptrdiff_t D = flow->padded;
    REAL *restrict dout = slopes->rows, *restrict dbias = dout + D, *restrict dout_bias = dbias + D;
    for (ptrdiff_t k = 0; k < block->graphs; k++) {
        const REAL *t = hidden + k * D;
        REAL *restrict dt = work->dhidden + k * D;
        SIMD
        for (ptrdiff_t m = 0; m < D; m++) {
            const REAL s = NAME(sigmoid)(t[m]);
            dt[m] = dvalue[k] * mlp->out[m] * (s + t[m] * s * (1 - s));
            dout[m] += dvalue[k] * t[m] * s;
            dbias[m] += dt[m];
        }
        dout_bias[0] += dvalue[k];
    }
    NAME(product)(D, D, block->graphs, TRANSPOSED(work->dhidden, D), AS_ROWS(pooled), slopes->weight, D, slopes->weight, D);
    NAME(product)(block->graphs, D, D, LEFT(work->dhidden, D), PANELS(mlp->map.down, D), NULL, 0, work->dpooled, D);
    for (ptrdiff_t i = 0; i < block->nodes; i++) {
        const REAL *from = work->dpooled + work->graph[i] * D, share = flow->pool_mean ? work->share[work->graph[i]] : 1;
        REAL *restrict to = rows + i * D;
        SIMD
        for (ptrdiff_t m = 0; m < D; m++)
            to[m] = (add ? to[m] : 0) + from[m] * share;
    }
}

/* Everything of a field but the energy, which was computed before: alpha, and with a tangent M and beta. */
static void NAME(field_value)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Tape) *tape)
{
    const ptrdiff_t n = block->nodes, d = flow->channels, D = flow->padded;
    NAME(pooled_value)(flow, &weights->alpha, block, work, work->f, tape->pooled_f, tape->hidden_alpha, tape->alpha);
    for (ptrdiff_t k = 0; k < block->graphs; k++)
        tape->alpha[k] = NAME(sigmoid)(tape->alpha[k]);
    NAME(energy_gradient)(flow, weights, block, work, tape);
    if (!flow->tangent_layers)
        return;
    NAME(layers_value)(flow, block, flow->tangent_layers, weights->tangent, tape->tangent, flow->tangent_c, tape->out, NULL);
    if (flow->linear)
        NAME(product)(n, D, d, LEFT(tape->out, D), PANELS(weights->linear.up, d), weights->linear.bias, 0, tape->M, D);
    NAME(pooled_value)(flow, &weights->beta, block, work, tape->M, tape->pooled_M, tape->hidden_beta, tape->beta);
    NAME(velocity_dots)(0, n, D, ROWS_OF(tape->M), ROWS_OF(tape->g), work->of_rows);
    NAME(velocity_shares)(n, block->graphs, work->graph, work->of_rows, tape->shares);
    NAME(velocity_rest)(0, n, D, work->room, ROWS_OF(tape->M), ROWS_OF(tape->g), work->graph, tape->shares, work->of_rows);
    NAME(velocity_second_shares)(n, block->graphs, work->graph, work->of_rows, tape->shares);
}

CLONES static void NAME(field_velocity)(
    const Flow *flow, const NAME(Block) *block, const NAME(Work) *work, const NAME(Tape) *tape, REAL *velocity)
{
    const ptrdiff_t D = flow->padded;
    if (flow->tangent_layers) {
        NAME(velocity_value)(0, block->nodes, D, ROWS_OF(tape->M), ROWS_OF(tape->g), tape->alpha, tape->beta, work->graph,
                             tape->shares, INTO(velocity));
        return;
    }
    for (ptrdiff_t i = 0; i < block->nodes; i++)
        for (ptrdiff_t m = 0; m < D; m++)
            velocity[i * D + m] = -tape->alpha[work->graph[i]] * tape->g[i * D + m];
}

/* to = from + scale size along, with a scale of every graph. */
CLONES static void NAME(scaled_sum)(
    const Flow *flow, const NAME(Block) *block, const NAME(Work) *work, const REAL *from, const REAL *scale, const REAL *along,
    REAL *to)
{
    const ptrdiff_t D = flow->padded;
    for (ptrdiff_t i = 0; i < block->nodes; i++) {
        const REAL by = (REAL)flow->step_size * scale[work->graph[i]];
        SIMD
        for (ptrdiff_t m = 0; m < D; m++)
            to[i * D + m] = (from ? from[i * D + m] : 0) + by * along[i * D + m];
    }
}

CLONES static void NAME(add_rows)(ptrdiff_t count, const REAL *x, REAL *restrict to)
{
    SIMD
    for (ptrdiff_t m = 0; m < count; m++)
        to[m] += x[m];
}

/* -- forward ----------------------------------------------------------------------------------------------------------- */

/* The next state and its energy. Without a guard the scale is 1. */
static void NAME(take_step)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Tape) *tape,
    const NAME(Tape) *next, int with_energy)
{
    NAME(field_velocity)(flow, block, work, tape, work->velocity);
    for (ptrdiff_t k = 0; k < block->graphs; k++)
        work->scale[k] = 1;
    for (int halvings = 0;; halvings++) {
        NAME(scaled_sum)(flow, block, work, tape->energy->x, work->scale, work->velocity, next->energy->x);
        if (!with_energy)
            return;
        NAME(energy_value)(flow, weights, block, work, next, work->trial);
        int grew = 0;
        if (flow->halvings >= 0)
            for (ptrdiff_t k = 0; k < block->graphs; k++) {
                const REAL trial = work->trial[k]; /* which is not negative; the difference is zero if it is finite */
                const int kept = trial <= work->energy[k] + (REAL)flow->allowance * work->energy[k] && trial - trial == 0;
                if (!kept && work->scale[k] > 0) {
                    work->scale[k] = halvings < flow->halvings ? work->scale[k] / 2 : 0;
                    grew = 1;
                }
            }
        if (!grew)
            break;
    }
    /* Where the field is not a number no part of a step helps: the scale says so. */
    for (ptrdiff_t k = 0; k < block->graphs; k++)
        if (work->scale[k] == 0)
            for (ptrdiff_t m = work->first[k] * flow->padded; m < work->first[k + 1] * flow->padded; m++)
                work->scale[k] += work->velocity[m] - work->velocity[m];
    memcpy(work->energy, work->trial, (size_t)block->graphs * sizeof(REAL));
}

static void NAME(keep_state)(const Flow *flow, const NAME(Block) *block, int step, const NAME(Tape) *tape)
{
    const ptrdiff_t first = block->node * flow->channels;
    if (flow->states)
        NAME(write_rows)(flow, block->nodes, tape->energy->x, (REAL *)flow->states + step * flow->nodes * flow->channels + first);
    if (step == flow->steps)
        NAME(write_rows)(flow, block->nodes, tape->energy->x, (REAL *)flow->last + first);
}

/* The tape of a step: kept for the backward, or one of two that take turns. */
static const NAME(Tape) *NAME(tape_of)(const Flow *flow, const NAME(Block) *block, NAME(Work) *work, NAME(Tape) *kept, int step)
{
    if (!block->tape || step == flow->steps)
        return work->tapes + step % 2;
    const ptrdiff_t size = NAME(lay_out_tape)(flow, kept, block->nodes, block->graphs, NULL);
    NAME(lay_out_tape)(flow, kept, block->nodes, block->graphs, block->tape + step * size);
    return kept;
}

static void NAME(forward_block)(const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work)
{
    const int steps = flow->steps, all = flow->energies != NULL || flow->halvings >= 0;
    NAME(Tape) kept[2];
    const NAME(Tape) *tape = NAME(tape_of)(flow, block, work, kept, 0);
    NAME(read_rows)(flow, block->nodes, (const REAL *)flow->h + block->node * flow->channels, tape->energy->x);
    NAME(energy_value)(flow, weights, block, work, tape, work->energy);
    for (int step = 0;; step++) {
        NAME(keep_state)(flow, block, step, tape);
        if (flow->energies)
            memcpy((REAL *)flow->energies + step * flow->graphs + block->graph, work->energy, (size_t)block->graphs * sizeof(REAL));
        if (step == steps)
            return;
        NAME(field_value)(flow, weights, block, work, tape);
        const NAME(Tape) *next = NAME(tape_of)(flow, block, work, kept + (step + 1) % 2, step + 1);
        NAME(take_step)(flow, weights, block, work, tape, next, all || step + 1 < steps);
        memcpy((REAL *)flow->scales + step * flow->graphs + block->graph, work->scale, (size_t)block->graphs * sizeof(REAL));
        tape = next;
    }
}

/* -- backward ---------------------------------------------------------------------------------------------------------- */

/* Adds to lam the derivative of <dg, g> + <denergy, V> + <lf, f> in the state. */
static void NAME(energy_backward)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Tape) *tape,
    const NAME(Slopes) *slopes)
{
    const ptrdiff_t n = block->nodes, d = flow->channels, D = flow->padded;
    const int layers = flow->energy_layers, last = layers - 1;
    const NAME(In) c = NAME(of_edges)(flow, flow->energy_c), none = NO_ROWS;
    const NAME(Perceptron) *head = &weights->head;
    for (int l = 0; l < layers; l++) {
        const NAME(LayerTape) *own = tape->energy + l;
        const NAME(Gates) *gates = weights->energy + l;
        NAME(product)(n, 4 * D, d, LEFT(work->dual_x[l], D), PANELS(gates->map.up, d), NULL, 0, work->dual_p[l], 4 * D);
        NAME(layer_dual_value)(block->by_target, own->p, work->dual_p[l], c, own->sums, own->stats, gates->norm_weight,
                               gates->norm_bias, flow->residual ? ROWS_OF(own->x) : none,
                               flow->residual ? ROWS_OF(work->dual_x[l]) : none, l == last ? INTO(work->y) : NOT_ASKED,
                               INTO(work->f), INTO(work->dual_x[l + 1]), INTO(work->f_), work->dual_sums[l], work->dual_stats[l]);
    }
    REAL *gt = work->gt, *gt_ = work->gt_, *g_ = work->below;
    NAME(product)(n, D, d, LEFT(work->f_, D), PANELS(head->map.up, d), NULL, 0, work->t_, D);
    NAME(head_dual)(block->by_target, tape->t, work->t_, head->out, head->out_bias, work->seed,
                    flow->denergies ? (NAME(In)){work->seed_, 1} : none, gt, gt_, slopes->head.rows);
    NAME(product)(D, D, n, TRANSPOSED(gt, D), AS_ROWS(work->f_), slopes->head.weight, D, slopes->head.weight, D);
    NAME(product)(D, D, n, TRANSPOSED(gt_, D), AS_ROWS(work->f), slopes->head.weight, D, slopes->head.weight, D);
    NAME(product)(n, D, D, LEFT(gt_, D), PANELS(head->map.down, D), work->lf, D, g_, D);
    for (int l = last; l >= 0; l--) {
        const NAME(LayerTape) *own = tape->energy + l;
        const NAME(Gates) *gates = weights->energy + l;
        const NAME(GatesSlopes) *found = slopes->energy + l;
        REAL *dp_ = work->dp;
        NAME(layer_dual_rows)(block->by_target, own->p, work->dual_p[l], own->sums, work->dual_sums[l], own->stats,
                              work->dual_stats[l], gates->norm_weight, gates->norm_bias, ROWS_OF(own->g), ROWS_OF(g_),
                              l == last ? ROWS_OF(work->y) : none, l == last ? ROWS_OF(work->dual_x[layers]) : none,
                              flow->residual ? INTO(work->again) : NOT_ASKED, dp_, work->gns, found->rows);
        NAME(layer_dual_columns)(block->by_source, own->p, work->dual_p[l], c, own->sums, work->dual_sums[l], work->gns, dp_,
                                 flow->denergy_c ? INTO(flow->denergy_c) : NOT_ASKED, found->columns);
        NAME(product)(4 * D, D, n, TRANSPOSED(own->dp, 4 * D), AS_ROWS(work->dual_x[l]), found->weight, D, found->weight, D);
        NAME(product)(4 * D, D, n, TRANSPOSED(dp_, 4 * D), AS_ROWS(own->x), found->weight, D, found->weight, D);
        NAME(product)(n, D, 4 * D, LEFT(dp_, 4 * D), PANELS(gates->map.down, 4 * D), flow->residual ? work->again : NULL, D, g_, D);
    }
    NAME(add_rows)(n * D, g_, work->lam);
}

/* From the cotangent l of the velocity to those of M, g, alpha and beta. */
CLONES static void NAME(velocity_cotangents)(
    const Flow *flow, const NAME(Block) *block, NAME(Work) *work, const NAME(Tape) *tape, REAL *dg)
{
    const ptrdiff_t n = block->nodes, D = flow->padded;
    if (flow->tangent_layers) {
        const NAME(In) M = ROWS_OF(tape->M), g = ROWS_OF(tape->g), l = ROWS_OF(work->l);
        NAME(velocity_products)(0, n, D, work->room, M, g, l, work->graph, tape->shares, work->of_rows);
        NAME(velocity_slopes)(n, block->graphs, work->graph, work->of_rows, tape->shares, work->products, work->dalpha, work->dbeta);
        NAME(velocity_backward)(0, n, D, M, g, l, tape->alpha, tape->beta, work->graph, tape->shares, work->products,
                                INTO(work->dM), INTO(dg));
        return;
    }
    for (ptrdiff_t k = 0; k < block->graphs; k++)
        work->dalpha[k] = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        work->dalpha[work->graph[i]] -= NAME(dot)(D, work->l + i * D, tape->g + i * D);
        for (ptrdiff_t m = 0; m < D; m++)
            dg[i * D + m] = -tape->alpha[work->graph[i]] * work->l[i * D + m];
    }
}

static void NAME(step_backward)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Tape) *tape, int step,
    const NAME(Slopes) *slopes)
{
    const ptrdiff_t n = block->nodes, D = flow->padded;
    NAME(scaled_sum)(flow, block, work, NULL, (const REAL *)flow->scales + step * flow->graphs + block->graph, work->lam, work->l);
    NAME(velocity_cotangents)(flow, block, work, tape, work->dual_x[0]);
    for (ptrdiff_t k = 0; k < block->graphs; k++)
        work->dalpha[k] *= tape->alpha[k] * (1 - tape->alpha[k]);
    NAME(pooled_backward)(flow, &weights->alpha, block, work, tape->pooled_f, tape->hidden_alpha, work->dalpha, &slopes->alpha, 0, work->lf);
    if (flow->tangent_layers) {
        REAL *gy = work->dM;
        NAME(pooled_backward)(flow, &weights->beta, block, work, tape->pooled_M, tape->hidden_beta, work->dbeta, &slopes->beta, 1, gy);
        if (flow->linear) {
            for (ptrdiff_t i = 0; i < n; i++)
                NAME(add_rows)(D, gy + i * D, slopes->linear.rows);
            NAME(product)(D, D, n, TRANSPOSED(gy, D), AS_ROWS(tape->out), slopes->linear.weight, D, slopes->linear.weight, D);
            NAME(product)(n, D, D, LEFT(gy, D), PANELS(weights->linear.down, D), NULL, 0, work->l, D);
            gy = work->l;
        }
        NAME(layers_backward)(flow, block, work, flow->tangent_layers, weights->tangent, tape->tangent, flow->tangent_c,
                              flow->dtangent_c, gy, NULL, slopes->tangent);
        NAME(add_rows)(n * D, work->below, work->lam);
    }
    NAME(energy_backward)(flow, weights, block, work, tape, slopes);
}

/* The cotangents of a step's energies at its nodes; NULL where nobody asked. */
static void NAME(read_denergies)(const Flow *flow, const NAME(Block) *block, NAME(Work) *work, int step)
{
    const REAL *given = (const REAL *)flow->denergies + step * flow->graphs + block->graph;
    for (ptrdiff_t i = 0; i < block->nodes; i++)
        work->seed_[i] = given[work->graph[i]] * work->seed[i];
}

/* lam becomes the derivative of the last energy in the last state. */
static void NAME(last_energy_backward)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Slopes) *slopes)
{
    const ptrdiff_t n = block->nodes, D = flow->padded;
    const NAME(Perceptron) *head = &weights->head;
    const NAME(Tape) *tape = work->tapes;
    NAME(read_rows)(flow, n, (const REAL *)flow->last + block->node * flow->channels, tape->energy->x);
    NAME(energy_value)(flow, weights, block, work, tape, work->energy);
    NAME(read_denergies)(flow, block, work, flow->steps);
    memset(work->t_, 0, (size_t)(n * D) * sizeof(REAL));
    NAME(head_dual)(block->by_target, tape->t, work->t_, head->out, head->out_bias, work->seed, (NAME(In)){work->seed_, 1},
                    work->gt, work->gt_, slopes->head.rows);
    NAME(product)(D, D, n, TRANSPOSED(work->gt_, D), AS_ROWS(work->f), slopes->head.weight, D, slopes->head.weight, D);
    NAME(product)(n, D, D, LEFT(work->gt_, D), PANELS(head->map.down, D), NULL, 0, work->l, D);
    NAME(layers_backward)(flow, block, work, flow->energy_layers, weights->energy, tape->energy, flow->energy_c, flow->denergy_c,
                          work->l, work->y, slopes->energy);
    memcpy(work->lam, work->below, (size_t)(n * D) * sizeof(REAL));
}

static void NAME(add_cotangent)(const Flow *flow, const NAME(Block) *block, NAME(Work) *work, const REAL *given)
{
    NAME(read_rows)(flow, block->nodes, given + block->node * flow->channels, work->l);
    NAME(add_rows)(block->nodes * flow->padded, work->l, work->lam);
}

static void NAME(backward_block)(
    const Flow *flow, const NAME(Weights) *weights, const NAME(Block) *block, NAME(Work) *work, const NAME(Slopes) *slopes)
{
    const ptrdiff_t n = block->nodes, d = flow->channels, D = flow->padded, entries = flow->nodes * d;
    memset(work->lam, 0, (size_t)(n * D) * sizeof(REAL));
    if (flow->denergies)
        NAME(last_energy_backward)(flow, weights, block, work, slopes);
    if (flow->dlast)
        NAME(add_cotangent)(flow, block, work, flow->dlast);
    for (int step = flow->steps; step >= 0; step--) {
        if (step < flow->steps) {
            NAME(Tape) kept;
            const NAME(Tape) *tape = NAME(tape_of)(flow, block, work, &kept, step);
            if (!flow->tape) {
                const REAL *x = (const REAL *)flow->states + step * entries + block->node * d;
                NAME(read_rows)(flow, n, x, tape->energy->x);
                NAME(energy_value)(flow, weights, block, work, tape, work->energy);
                NAME(field_value)(flow, weights, block, work, tape);
            }
            if (flow->denergies)
                NAME(read_denergies)(flow, block, work, step);
            NAME(step_backward)(flow, weights, block, work, tape, step, slopes);
        }
        if (flow->dstates)
            NAME(add_cotangent)(flow, block, work, (const REAL *)flow->dstates + step * entries);
    }
    NAME(write_rows)(flow, n, work->lam, (REAL *)flow->dh + block->node * d);
}

/* -- all blocks -------------------------------------------------------------------------------------------------------- */

/* The graphs of one part, block by block. */
static void NAME(flow_part)(const Flow *flow, const NAME(Weights) *weights, int part, void *memory, REAL *slots, ptrdiff_t slot)
{
    NAME(Work) work;
    NAME(lay_out_work)(flow, &work, memory);
    NAME(Slopes) slopes;
    if (flow->backward)
        NAME(lay_out_slopes)(flow, &slopes, slots + part * slot);
    for (ptrdiff_t b = flow->part_begins[part]; b < flow->part_begins[part + 1]; b++) {
        const NAME(Block) block = NAME(begin_block)(flow, b, &work);
        if (flow->backward)
            NAME(backward_block)(flow, weights, &block, &work, &slopes);
        else
            NAME(forward_block)(flow, weights, &block, &work);
    }
}

/* Where the tapes of each block begin; gives the size of all. */
static ptrdiff_t NAME(lay_out_tapes)(Flow *flow)
{
    ptrdiff_t used = 0;
    for (ptrdiff_t b = 0; b < flow->blocks; b++) {
        const ptrdiff_t first = flow->block_begins[b], last = flow->block_begins[b + 1];
        const ptrdiff_t nodes = (ptrdiff_t)(flow->graph_ptr[last] - flow->graph_ptr[first]);
        NAME(Tape) tape;
        flow->block_tapes[b] = used;
        used += flow->steps * NAME(lay_out_tape)(flow, &tape, nodes, last - first, NULL);
    }
    return used;
}

static int NAME(run_flow)(const Flow *flow)
{
    NAME(Weights) weights;
    NAME(Work) work;
    NAME(Slopes) slopes;
    const ptrdiff_t of_weights = NAME(lay_out_weights)(flow, &weights, NULL), of_work = NAME(lay_out_work)(flow, &work, NULL);
    const ptrdiff_t slot = flow->backward ? NAME(lay_out_slopes)(flow, &slopes, NULL) : 0;
    const ptrdiff_t of_slots = slot * flow->parts;
    const size_t size = (size_t)(of_weights + of_slots + of_work * flow->threads) * sizeof(REAL);
    char *memory = malloc(size + 64);
    if (!memory)
        return 0;
    REAL *at = (REAL *)(((uintptr_t)memory + 63) / 64 * 64), *slots = at + of_weights, *works = slots + of_slots;
    NAME(lay_out_weights)(flow, &weights, at);
    memset(slots, 0, (size_t)of_slots * sizeof(REAL));
#pragma omp parallel for schedule(dynamic) num_threads(flow->threads) if (flow->threads > 1)
    for (int part = 0; part < flow->parts; part++)
        NAME(flow_part)(flow, &weights, part, works + THREAD * of_work, slots, slot);
    if (flow->backward) { /* one part after the other, so that it does not depend on who did them */
        for (int part = 1; part < flow->parts; part++)
            NAME(add_rows)(slot, slots + part * slot, slots);
        if (flow->parts) {
            NAME(lay_out_slopes)(flow, &slopes, slots);
            NAME(cut_slopes)(flow, &slopes, flow->dweights);
        }
    }
    free(memory);
    return 1;
}

#undef ROWS_OF
#undef INTO
#undef NO_ROWS
#undef NOT_ASKED
#undef LEFT
#undef TRANSPOSED
#undef PANELS
#undef AS_ROWS
#undef VECTOR
