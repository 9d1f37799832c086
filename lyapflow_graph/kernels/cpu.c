/* What a gated layer does on the edges and at the nodes of graphs, with first and second derivatives, on the CPU.

   The module knows nothing of torch: it is given addresses and strides, and uses Python's stable interface alone, so
   that one build serves every version of both.
*/

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

/* The compiler makes a version of each kernel for these processors; the loader takes the best that runs. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && !defined(NO_CLONES)
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif

#if defined(_OPENMP)
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

/* Channels are independent of each other. Sums within a row may be taken in any order, as long as it is the same. */
#define TEXT(x) _Pragma(#x)
#define SIMD TEXT(omp simd)

#define ROW(x, i) ((x).at + (ptrdiff_t)(i) * (x).stride)

#define AHEAD 8 /* edges */
#define LINE 64 /* bytes of memory that come at once */
#define BLOCK 64
#define ROWS 32 /* that a thread takes at a time */
#define LANES 16 /* that rows are summed in; rows of what a layer keeps to itself are as wide as a multiple of this */
#define ROOM 9  /* rows that a thread needs to work with */

#define CLOSED 1e-6  /* keeps the shares finite where all gates of a node are closed */
#define EPSILON 1e-5 /* of the normalisation */

static int wide_registers; /* whether there are 32 vector registers of 64 bytes */

#if defined(__GNUC__)
#include "flow.h" /* it needs vectors of the compiler's own */
#endif

static const float zeros_of_float[BLOCK] = {0};
static const double zeros_of_double[BLOCK] = {0};

#define REAL float
#define BITS uint32_t
#define NAME(x) x##_float
#define ZEROS zeros_of_float
#define EXP_HIGH 87.0f
#define LOG2E 1.44269504088896341f
#define ROUNDER 12582912.0f /* 1.5 * 2^23: what is added to it is rounded to a whole number */
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define BIAS 127
#define SQRT sqrtf
#define SMALLEST FLT_MIN
#define MANTISSA 23
#define POLYNOMIAL(r)                                                                                                  \
    (1.0f + r + r * r * (0.5f + r * (1.6666667e-1f + r * (4.1666668e-2f + r * (8.3333676e-3f + r * 1.3888885e-3f)))))
#include "gated_real.h"
#include "update_real.h"
#include "layer_real.h"
#include "norm_real.h"
#include "velocity_real.h"
#if defined(__GNUC__)
#include "product_real.h"
#include "flow_real.h"
#endif
#undef REAL
#undef BITS
#undef NAME
#undef ZEROS
#undef EXP_HIGH
#undef LOG2E
#undef ROUNDER
#undef LN2_HIGH
#undef LN2_LOW
#undef BIAS
#undef SQRT
#undef SMALLEST
#undef MANTISSA
#undef POLYNOMIAL

#define REAL double
#define BITS uint64_t
#define NAME(x) x##_double
#define ZEROS zeros_of_double
#define EXP_HIGH 708.0
#define LOG2E 1.4426950408889634074
#define ROUNDER 6755399441055744.0 /* 1.5 * 2^52 */
#define LN2_HIGH 6.93147180369123816490e-1
#define LN2_LOW 1.90821492927058770002e-10
#define BIAS 1023
#define SQRT sqrt
#define SMALLEST DBL_MIN
#define MANTISSA 52
#define POLYNOMIAL(r)                                                                                                  \
    (1 + r + r * r * (1.0 / 2 + r * (1.0 / 6 + r * (1.0 / 24 + r * (1.0 / 120 + r * (1.0 / 720 + r * (1.0 / 5040 + r * \
    (1.0 / 40320 + r * (1.0 / 362880 + r * (1.0 / 3628800 + r * (1.0 / 39916800 + r * (1.0 / 479001600))))))))))))
#include "gated_real.h"
#include "update_real.h"
#include "layer_real.h"
#include "norm_real.h"
#include "velocity_real.h"
#if defined(__GNUC__)
#include "product_real.h"
#include "flow_real.h"
#endif

/* Whatever a kernel is called with: addresses and strides, in the order of its arguments. */
#define MOST 17
typedef struct {
    ptrdiff_t rows, channels, padded, systems;
    const int32_t *ptr, *other, *edge;
    void *at[MOST];
    ptrdiff_t stride[MOST];
    int share;  /* whether gates are normalised */
    void *sums; /* over the rows of each piece, for weight and bias */
} Call;

/* In the order of the names in cpu.py. */
enum {
    FORWARD, BACKWARD_ROWS, BACKWARD_COLUMNS, DOUBLE_ROWS, DOUBLE_COLUMNS,
    UPDATE_FORWARD, UPDATE_BACKWARD, UPDATE_DOUBLE, NORM_FORWARD, NORM_BACKWARD, NORM_DOUBLE, SILU_FORWARD, SILU_BACKWARD, SILU_DOUBLE,
    VELOCITY_DOTS, VELOCITY_REST, VELOCITY_VALUE, VELOCITY_PRODUCTS, VELOCITY_BACKWARD,
    LAYER_VALUE, LAYER_ROWS, LAYER_COLUMNS, LAYER_DUAL_VALUE, LAYER_DUAL_ROWS, LAYER_DUAL_COLUMNS,
    HEAD_VALUE, HEAD_DUAL, KERNELS
};
static const int arguments[KERNELS] = {
    6, 8, 8, 14, 12, 6, 10, 16, 4, 5, 9, 2, 3, 5, 5, 5, 7, 9, 10, 10, 11, 7, 15, 16, 9, 7, 9,
};
static int is_padded(int kernel) { return kernel >= LAYER_VALUE || (kernel >= NORM_FORWARD && kernel <= NORM_DOUBLE); }

/* How many rows a kernel sums over all rows of its input: its last argument has them. */
static int sums(int kernel)
{
    switch (kernel) {
    case NORM_DOUBLE: return 1;
    case UPDATE_BACKWARD: case UPDATE_DOUBLE: case NORM_BACKWARD: case LAYER_COLUMNS: case LAYER_DUAL_COLUMNS: return 2;
    case HEAD_DUAL: return 3;
    case LAYER_ROWS: case LAYER_DUAL_ROWS: return 4;
    default: return 0;
    }
}

#define IN(m) ((NAMED(In)){call->at[m], call->stride[m]})
#define OUT(m) ((NAMED(Out)){call->at[m], call->stride[m]})
#define EDGES first, last, call->channels, call->ptr, call->other, call->edge
#define NODES first, last, call->channels, room
#define CHANNELS first, last, call->channels
#define FLAT first * call->channels, last * call->channels
#define PIECE ((NAMED(Piece)){first, last, call->channels, call->padded, call->channels, call->ptr, call->other,       \
                              call->edge, room, call->share, call->share ? CLOSED : 1, 1})
#define SUMS(type) (type *)call->sums + sums(kernel) * piece * call->padded
#define RUN(type)                                                                                                      \
    type *room = memory;                                                                                               \
    void *const *at = call->at;                                                                                        \
    switch (kernel) {                                                                                                  \
    case FORWARD: NAMED(forward_rows)(EDGES, IN(0), IN(1), IN(2), IN(3), OUT(4), OUT(5)); break;                       \
    case BACKWARD_ROWS:                                                                                                \
        NAMED(backward_rows)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), OUT(6), OUT(7)); break;                  \
    case BACKWARD_COLUMNS:                                                                                             \
        NAMED(backward_columns)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), OUT(6), OUT(7)); break;               \
    case DOUBLE_ROWS:                                                                                                  \
        NAMED(double_rows)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), IN(6), IN(7), IN(8), IN(9),                \
                           OUT(10), OUT(11), OUT(12), OUT(13)); break;                                                 \
    case DOUBLE_COLUMNS:                                                                                               \
        NAMED(double_columns)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), IN(6), IN(7), IN(8), IN(9),             \
                              OUT(10), OUT(11)); break;                                                                \
    case UPDATE_FORWARD: NAMED(update_forward)(NODES, IN(0), IN(1), IN(2), at[3], at[4], OUT(5)); break;               \
    case UPDATE_BACKWARD:                                                                                              \
        NAMED(update_backward)(NODES, IN(0), IN(1), IN(2), at[3], at[4], IN(5), OUT(6), OUT(7), OUT(8), SUMS(type));   \
        break;                                                                                                         \
    case UPDATE_DOUBLE:                                                                                                \
        NAMED(update_double)(NODES, IN(0), IN(1), IN(2), at[3], at[4], IN(5), IN(6), IN(7), IN(8), at[9], at[10],      \
                             OUT(11), OUT(12), OUT(13), OUT(14), SUMS(type)); break;                                   \
    case NORM_FORWARD: NAMED(norm_forward)(PIECE, IN(0), at[1], at[2], OUT(3)); break;                                 \
    case NORM_BACKWARD: NAMED(norm_backward)(PIECE, IN(0), at[1], IN(2), OUT(3), SUMS(type)); break;                   \
    case NORM_DOUBLE:                                                                                                  \
        NAMED(norm_double)(PIECE, IN(0), at[1], IN(2), IN(3), at[4], at[5], OUT(6), OUT(7), SUMS(type)); break;        \
    case SILU_FORWARD: NAMED(silu)(0, FLAT, at[0], NULL, NULL, at[1], NULL); break;                                    \
    case SILU_BACKWARD: NAMED(silu)(1, FLAT, at[0], at[1], NULL, at[2], NULL); break;                                  \
    case SILU_DOUBLE: NAMED(silu)(2, FLAT, at[0], at[1], at[2], at[3], at[4]); break;                                  \
    case VELOCITY_DOTS: NAMED(velocity_dots)(CHANNELS, IN(0), IN(1), at[4]); break;                                    \
    case VELOCITY_REST: NAMED(velocity_rest)(NODES, IN(0), IN(1), at[2], at[3], at[4]); break;                         \
    case VELOCITY_VALUE:                                                                                               \
        NAMED(velocity_value)(CHANNELS, IN(0), IN(1), at[4], at[5], at[2], at[3], OUT(6)); break;                      \
    case VELOCITY_PRODUCTS: NAMED(velocity_products)(NODES, IN(0), IN(1), IN(5), at[2], at[3], at[4]); break;          \
    case VELOCITY_BACKWARD:                                                                                            \
        NAMED(velocity_backward)(CHANNELS, IN(0), IN(1), IN(7), at[4], at[5], at[2], at[3], at[6], OUT(8), OUT(9));    \
        break;                                                                                                         \
    case LAYER_VALUE:                                                                                                  \
        NAMED(layer_value)(PIECE, at[0], IN(1), at[2], at[3], at[4], IN(5), OUT(6), OUT(7), at[8], at[9]); break;      \
    case LAYER_ROWS:                                                                                                   \
        NAMED(layer_backward_rows)(PIECE, at[0], at[1], at[2], at[3], at[4], IN(5), IN(6), OUT(7), at[8], at[9],       \
                                   SUMS(type)); break;                                                                 \
    case LAYER_COLUMNS:                                                                                                \
        NAMED(layer_backward_columns)(PIECE, at[0], IN(1), at[2], at[3], at[4], OUT(5), SUMS(type)); break;            \
    case LAYER_DUAL_VALUE:                                                                                             \
        NAMED(layer_dual_value)(PIECE, at[0], at[1], IN(2), at[3], at[4], at[5], at[6], IN(7), IN(8), OUT(9), OUT(10), \
                                OUT(11), OUT(12), at[13], at[14]); break;                                              \
    case LAYER_DUAL_ROWS:                                                                                              \
        NAMED(layer_dual_rows)(PIECE, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], IN(8), IN(9), IN(10),    \
                               IN(11), OUT(12), at[13], at[14], SUMS(type)); break;                                    \
    case LAYER_DUAL_COLUMNS:                                                                                           \
        NAMED(layer_dual_columns)(PIECE, at[0], at[1], IN(2), at[3], at[4], at[5], at[6], OUT(7), SUMS(type)); break;  \
    case HEAD_VALUE: NAMED(head_value)(PIECE, at[0], at[1], at[2], at[3], at[4], at[5], at[6]); break;                 \
    default: NAMED(head_dual)(PIECE, at[0], at[1], at[2], at[3], at[4], IN(5), at[6], at[7], SUMS(type));              \
    }

static void run(int kernel, int doubles, ptrdiff_t piece, const Call *call, void *memory)
{
    const ptrdiff_t first = piece * ROWS, last = first + ROWS < call->rows ? first + ROWS : call->rows;
    if (doubles) {
#define NAMED(x) x##_double
        RUN(double)
#undef NAMED
    } else {
#define NAMED(x) x##_float
        RUN(float)
#undef NAMED
    }
}

/* What is left when all pieces are done, one after the other, so that it does not depend on who did them. */
#define ADD_UP(type)                                                                                                   \
    type *total = call->at[arguments[kernel] - 1];                                                                     \
    const ptrdiff_t width = sums(kernel) * call->padded;                                                               \
    for (ptrdiff_t m = 0; m < width; m++)                                                                              \
        total[m] = 0;                                                                                                  \
    for (ptrdiff_t piece = 0; piece < pieces; piece++)                                                                 \
        for (ptrdiff_t m = 0; m < width; m++)                                                                          \
            total[m] += ((const type *)call->sums)[piece * width + m];
#define FINISH(type)                                                                                                   \
    switch (kernel) {                                                                                                  \
    case VELOCITY_DOTS: NAMED(velocity_shares)(call->rows, call->systems, at[2], at[4], at[3]); break;                 \
    case VELOCITY_REST: NAMED(velocity_second_shares)(call->rows, call->systems, at[2], at[4], at[3]); break;          \
    case VELOCITY_PRODUCTS:                                                                                            \
        NAMED(velocity_slopes)(call->rows, call->systems, at[2], at[4], at[3], at[6], at[7], at[8]); break;            \
    default:                                                                                                           \
        if (sums(kernel)) {                                                                                            \
            ADD_UP(type)                                                                                               \
        }                                                                                                              \
    }

static void finish(int kernel, int doubles, ptrdiff_t pieces, const Call *call)
{
    void *const *at = call->at;
    if (doubles) {
#define NAMED(x) x##_double
        FINISH(double)
#undef NAMED
    } else {
#define NAMED(x) x##_float
        FINISH(float)
#undef NAMED
    }
}

static PyObject *launch(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Py_ssize_t number[8 + 2 * MOST];
    if (count < 8 || count > 8 + 2 * MOST) {
        PyErr_Format(PyExc_TypeError, "launch takes 8 numbers and pairs of an address and a stride, got %zd", count);
        return NULL;
    }
    for (Py_ssize_t m = 0; m < count; m++) {
        number[m] = PyLong_AsSsize_t(given[m]);
        if (number[m] == -1 && PyErr_Occurred())
            return NULL;
    }
    const int kernel = (int)number[0], doubles = (int)number[1], threads = (int)number[2];
    if (kernel < 0 || kernel >= KERNELS || count != 8 + 2 * arguments[kernel]) {
        PyErr_Format(PyExc_ValueError, "there is no kernel %d with %zd arguments", kernel, (count - 8) / 2);
        return NULL;
    }
    const int32_t *edges = (const int32_t *)number[7]; /* one order of the edges: where they begin, other ends, numbers */
    Call call = {.rows = number[3], .channels = number[4], .padded = number[4], .systems = number[5], .share = number[6] != 0};
    if (is_padded(kernel))
        call.padded = (call.channels + LANES - 1) / LANES * LANES;
    if (edges) {
        call.ptr = edges;
        call.other = edges + call.rows + 1;
        call.edge = call.other + number[5];
    }
    for (int m = 0; m < arguments[kernel]; m++) {
        call.at[m] = (void *)number[8 + 2 * m];
        call.stride[m] = number[9 + 2 * m];
    }
    const ptrdiff_t pieces = (call.rows + ROWS - 1) / ROWS;
    if (sums(kernel)) {
        call.sums = PyMem_Calloc((size_t)(pieces * sums(kernel) * call.padded + 1), doubles ? sizeof(double) : sizeof(float));
        if (!call.sums)
            return PyErr_NoMemory();
    }
    const size_t room = (size_t)(ROOM * call.padded) * (doubles ? sizeof(double) : sizeof(float));
    char *rooms = PyMem_Malloc((size_t)threads * room + 1); /* not on the stack: rows are of any width */
    if (!rooms) {
        PyMem_Free(call.sums);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (ptrdiff_t piece = 0; piece < pieces; piece++)
        run(kernel, doubles, piece, &call, rooms + (size_t)THREAD * room);
    finish(kernel, doubles, pieces, &call);
    Py_END_ALLOW_THREADS
    PyMem_Free(rooms);
    PyMem_Free(call.sums);
    Py_RETURN_NONE;
}

#include "blocks.h"

static PyMethodDef methods[] = {
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL,
     "launch(kernel, doubles, threads, rows, channels, edges or systems, whether gates are normalised, address of the edges, "
     "address, stride, ...)\n\n"
     "Run a kernel on tensors given by their addresses."},
#if defined(__GNUC__)
    {"flow", (PyCFunction)(void (*)(void))flow_of, METH_FASTCALL,
     "flow(numbers, addresses of tensors, step size, allowance, addresses of weights)\n\n"
     "Run a whole flow on small graphs, or its backward; see flow.h. Gives the size of the tape."},
#endif
    {"block", new_block, METH_O, "block(bytes)\n\nA block of memory of at least so many bytes."},
    {"release", release_blocks, METH_NOARGS, "release()\n\nGive free blocks back to the system."},
    {"held", count_blocks, METH_NOARGS, "held()\n\nBytes in use, and bytes that are free to be used again."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_cpu", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void)
{
#if defined(__GNUC__) && defined(__x86_64__)
    wide_registers = __builtin_cpu_supports("avx512f") != 0;
#endif
    block_type = PyType_FromSpec(&block_spec);
    return block_type ? PyModule_Create(&definition) : NULL;
}
