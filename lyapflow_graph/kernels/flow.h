/* What a flow on small graphs is given, how its graphs are divided, and how Python calls it. flow_real.h computes it. */

#define MOST_LAYERS 16
#define MOST_PARTS 16  /* that threads take, each with its own sums of the derivatives in the weights */
#define BLOCK_NODES 64 /* about so many nodes are worked on at once: what they need fits in the second cache */

typedef struct {
    /* in the order that Python gives them */
    ptrdiff_t backward, doubles, threads, nodes, graphs, channels, edges, energy_layers, tangent_layers;
    ptrdiff_t linear;    /* whether a linear map ends the tangent */
    ptrdiff_t residual;  /* whether layers add what comes in */
    ptrdiff_t share;     /* whether gates are normalised */
    ptrdiff_t normed;    /* whether rows are */
    ptrdiff_t pool_mean; /* whether the coefficients have means of the nodes, or sums */
    ptrdiff_t mean;      /* whether the energy is one */
    ptrdiff_t steps;
    ptrdiff_t halvings; /* of a step under a guard, at most; -1 without a guard */
    /* tensors, NULL where there is none */
    const int32_t *packed;    /* edges by target and by source */
    const int64_t *graph_ptr; /* where the nodes of each graph begin */
    const void *h;
    void *last, *states, *energies, *scales, *tape;
    const void *energy_c, *tangent_c; /* of the edges, in padded rows */
    const void *dlast, *dstates, *denergies;
    void *dh, *dweights, *denergy_c, *dtangent_c;
    /* numbers */
    double step_size, allowance;
    /* found here */
    const void **weights;
    ptrdiff_t padded, most_nodes, most_graphs, most_edges;
    ptrdiff_t blocks, *block_begins, *block_tapes; /* graphs; entries of the tape */
    ptrdiff_t parts, part_begins[MOST_PARTS + 1];  /* blocks */
} Flow;

#define FLOW_NUMBERS 17
#define FLOW_TENSORS 17

/* Graphs one after the other in blocks, blocks in parts of about the same work: the same for any number of threads. */
static int divide(Flow *flow)
{
    const int64_t *ptr = flow->graph_ptr;
    flow->block_begins = malloc(2 * ((size_t)flow->graphs + 1) * sizeof(ptrdiff_t));
    if (!flow->block_begins)
        return 0;
    flow->block_tapes = flow->block_begins + flow->graphs + 1;
    for (ptrdiff_t graph = 0, next; graph < flow->graphs; graph = next) {
        flow->block_begins[flow->blocks++] = graph;
        for (next = graph + 1; next < flow->graphs && ptr[next + 1] - ptr[graph] <= BLOCK_NODES; next++)
            ;
        const ptrdiff_t nodes = (ptrdiff_t)(ptr[next] - ptr[graph]), edges = flow->packed[ptr[next]] - flow->packed[ptr[graph]];
        flow->most_nodes = nodes > flow->most_nodes ? nodes : flow->most_nodes;
        flow->most_edges = edges > flow->most_edges ? edges : flow->most_edges;
        flow->most_graphs = next - graph > flow->most_graphs ? next - graph : flow->most_graphs;
    }
    flow->block_begins[flow->blocks] = flow->graphs;
    flow->parts = flow->blocks < MOST_PARTS ? flow->blocks + !flow->blocks : MOST_PARTS;
    const ptrdiff_t all = flow->nodes + flow->edges;
    for (ptrdiff_t part = 0, b = 0; part <= flow->parts; part++) {
        for (; b < flow->blocks; b++) {
            const int64_t node = ptr[flow->block_begins[b]];
            if ((node + flow->packed[node]) * flow->parts >= part * all)
                break;
        }
        flow->part_begins[part] = part == flow->parts ? flow->blocks : b;
    }
    return 1;
}

static ptrdiff_t lay_out_tapes_float(Flow *flow), lay_out_tapes_double(Flow *flow);
static int run_flow_float(const Flow *flow), run_flow_double(const Flow *flow);

/* Run a flow, or its backward; or, with the tape's size asked for, nothing. Gives the size of the tape in entries. */
static PyObject *flow_of(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    const Py_ssize_t first = FLOW_NUMBERS + FLOW_TENSORS + 2;
    if (count < first) {
        PyErr_Format(PyExc_TypeError, "flow takes at least %zd arguments, got %zd", first, count);
        return NULL;
    }
    Flow flow = {0};
    ptrdiff_t *numbers = &flow.backward;
    const void **tensors = (const void **)&flow.packed;
    for (Py_ssize_t m = 0; m < FLOW_NUMBERS; m++)
        numbers[m] = PyLong_AsSsize_t(given[m]);
    for (Py_ssize_t m = 0; m < FLOW_TENSORS; m++)
        tensors[m] = (const void *)PyLong_AsSsize_t(given[FLOW_NUMBERS + m]);
    flow.step_size = PyFloat_AsDouble(given[first - 2]);
    flow.allowance = PyFloat_AsDouble(given[first - 1]);
    const ptrdiff_t layers = flow.energy_layers + flow.tangent_layers;
    const ptrdiff_t wanted = 4 * layers + 8 + (flow.tangent_layers ? 4 + 2 * flow.linear : 0);
    if (PyErr_Occurred())
        return NULL;
    if (flow.energy_layers < 1 || flow.energy_layers > MOST_LAYERS || flow.tangent_layers > MOST_LAYERS || count != first + wanted) {
        PyErr_Format(PyExc_ValueError, "a flow of %zd layers takes %zd weights, got %zd", layers, wanted, count - first);
        return NULL;
    }
    const void *weights[8 * MOST_LAYERS + 14];
    for (Py_ssize_t m = 0; m < wanted; m++)
        weights[m] = (const void *)PyLong_AsSsize_t(given[first + m]);
    if (PyErr_Occurred())
        return NULL;
    flow.weights = weights;
    flow.padded = (flow.channels + LANES - 1) / LANES * LANES;
    ptrdiff_t tape = 0;
    int done = 0;
    Py_BEGIN_ALLOW_THREADS
    if (divide(&flow)) {
        tape = flow.doubles ? lay_out_tapes_double(&flow) : lay_out_tapes_float(&flow);
        done = !flow.dh && !flow.last ? 1 : flow.doubles ? run_flow_double(&flow) : run_flow_float(&flow);
    }
    free(flow.block_begins);
    Py_END_ALLOW_THREADS
    return done ? PyLong_FromSsize_t(tape) : PyErr_NoMemory();
}
