/* Gated sums over the edges of graphs, with their first and second derivatives, on the CPU.

   The module knows nothing of torch: it is given addresses and strides, and uses Python's stable interface alone, so
   that one build serves every version of both.
*/

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

/* The compiler makes a version of each kernel for these processors; the loader takes the best that runs. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__)
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif

#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

#define AHEAD 8 /* edges */
#define LINE 64 /* bytes of memory that come at once */
#define BLOCK 64
#define ROWS 32 /* that a thread takes at a time */

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
#define MANTISSA 23
#define POLYNOMIAL(r)                                                                                                  \
    (1.0f + r + r * r * (0.5f + r * (1.6666667e-1f + r * (4.1666668e-2f + r * (8.3333676e-3f + r * 1.3888885e-3f)))))
#include "gated_real.h"
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
#define MANTISSA 52
#define POLYNOMIAL(r)                                                                                                  \
    (1 + r + r * r * (1.0 / 2 + r * (1.0 / 6 + r * (1.0 / 24 + r * (1.0 / 120 + r * (1.0 / 720 + r * (1.0 / 5040 + r * \
    (1.0 / 40320 + r * (1.0 / 362880 + r * (1.0 / 3628800 + r * (1.0 / 39916800 + r * (1.0 / 479001600))))))))))))
#include "gated_real.h"

/* Whatever a kernel is called with: `given` and `made` are addresses and strides, in the order of its arguments. */
typedef struct {
    ptrdiff_t rows, channels;
    const int32_t *ptr, *other, *edge;
    void *at[16];
    ptrdiff_t stride[16];
} Call;

enum { FORWARD, BACKWARD_ROWS, BACKWARD_COLUMNS, DOUBLE_ROWS, DOUBLE_COLUMNS, KERNELS };
static const int arguments[KERNELS] = {6, 8, 8, 14, 12};

#define IN(m) ((NAMED(In)){call->at[m], call->stride[m]})
#define OUT(m) ((NAMED(Out)){call->at[m], call->stride[m]})
#define EDGES first, last, call->channels, call->ptr, call->other, call->edge
#define RUN                                                                                                            \
    switch (kernel) {                                                                                                  \
    case FORWARD: NAMED(forward_rows)(EDGES, IN(0), IN(1), IN(2), IN(3), OUT(4), OUT(5)); break;                       \
    case BACKWARD_ROWS:                                                                                                \
        NAMED(backward_rows)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), OUT(6), OUT(7)); break;                  \
    case BACKWARD_COLUMNS:                                                                                             \
        NAMED(backward_columns)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), OUT(6), OUT(7)); break;               \
    case DOUBLE_ROWS:                                                                                                  \
        NAMED(double_rows)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), IN(6), IN(7), IN(8), IN(9),                \
                           OUT(10), OUT(11), OUT(12), OUT(13)); break;                                                 \
    default:                                                                                                           \
        NAMED(double_columns)(EDGES, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), IN(6), IN(7), IN(8), IN(9),             \
                              OUT(10), OUT(11));                                                                       \
    }

static void run(int kernel, int doubles, ptrdiff_t first, ptrdiff_t last, const Call *call)
{
    if (doubles) {
#define NAMED(x) x##_double
        RUN
#undef NAMED
    } else {
#define NAMED(x) x##_float
        RUN
#undef NAMED
    }
}

static PyObject *gated(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Py_ssize_t number[7 + 2 * 14];
    if (count < 7 || count > 7 + 2 * 14) {
        PyErr_Format(PyExc_TypeError, "gated takes 7 numbers and pairs of an address and a stride, got %zd", count);
        return NULL;
    }
    for (Py_ssize_t m = 0; m < count; m++) {
        number[m] = PyLong_AsSsize_t(given[m]);
        if (number[m] == -1 && PyErr_Occurred())
            return NULL;
    }
    const int kernel = (int)number[0], doubles = (int)number[1], threads = (int)number[2];
    if (kernel < 0 || kernel >= KERNELS || count != 7 + 2 * arguments[kernel]) {
        PyErr_Format(PyExc_ValueError, "there is no kernel %d with %zd arguments", kernel, (count - 7) / 2);
        return NULL;
    }
    const int32_t *edges = (const int32_t *)number[6]; /* one order of the edges: where they begin, other ends, numbers */
    Call call = {number[3], number[4], edges, edges + number[3] + 1, edges + number[3] + 1 + number[5], {0}, {0}};
    for (int m = 0; m < arguments[kernel]; m++) {
        call.at[m] = (void *)number[7 + 2 * m];
        call.stride[m] = number[8 + 2 * m];
    }
    const ptrdiff_t pieces = (call.rows + ROWS - 1) / ROWS;
    (void)threads; /* where there is no OpenMP */
    Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (ptrdiff_t piece = 0; piece < pieces; piece++) {
        const ptrdiff_t first = piece * ROWS, last = first + ROWS < call.rows ? first + ROWS : call.rows;
        run(kernel, doubles, first, last, &call);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"gated", (PyCFunction)(void (*)(void))gated, METH_FASTCALL,
     "gated(kernel, doubles, threads, rows, channels, edges, address of the edges, address, stride, ...)\n\n"
     "Run a kernel on tensors given by their addresses."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_cpu", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) { return PyModule_Create(&definition); }
