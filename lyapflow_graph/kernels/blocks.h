/* Memory for large tensors that is used again.

   A step of training gives back all that it had, and the next one asks for the same. The system's allocator returns large
   blocks to the operating system at once, which then fills every page with zeros again when it is first touched: a
   tenth of a step's time and more on large graphs. A Block is an object with Python's buffer interface. torch makes a tensor on
   it that keeps it alive, and when it goes its memory is kept for the next one of about its size.

   What is kept and what is in use is never more than was in use at once: a free block goes back to the system when
   another would exceed that. Whoever calls this holds the lock of the interpreter.
*/

#if defined(__linux__)
#include <sys/mman.h>
#endif

#define HUGE_PAGE ((size_t)1 << 21)
#define PAGES ((size_t)1 << 16) /* what smaller ones are rounded up to */
#define MOST_FREE 1024

typedef struct {
    PyObject_HEAD
    void *at;
    size_t size;
} Block;

typedef struct {
    void *at;
    size_t size;
} Memory;

static Memory free_blocks[MOST_FREE]; /* the oldest first */
static int free_count;
static size_t bytes_free, bytes_used, most_used;

static void *memory_from_system(size_t size)
{
#if defined(__linux__)
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    if (size >= HUGE_PAGE)
        madvise(at, size, MADV_HUGEPAGE); /* where the system has none, nothing is lost */
    return at;
#else
    return malloc(size);
#endif
}

static void memory_to_system(Memory memory)
{
#if defined(__linux__)
    munmap(memory.at, memory.size);
#else
    free(memory.at);
#endif
}

static Memory take_free(int m)
{
    const Memory found = free_blocks[m];
    memmove(free_blocks + m, free_blocks + m + 1, (size_t)(--free_count - m) * sizeof *free_blocks);
    bytes_free -= found.size;
    return found;
}

static void keep_free_below(size_t bytes)
{
    while (free_count && bytes_free > bytes)
        memory_to_system(take_free(0));
}

/* The smallest free block that is large enough and not much larger, of these the last one that was in use, which may be
   in a cache; or a new one. */
static Memory take_memory(size_t size)
{
    const size_t unit = size < HUGE_PAGE ? PAGES : HUGE_PAGE;
    size = (size + unit - 1) / unit * unit;
    int best = -1;
    for (int m = free_count - 1; m >= 0; m--)
        if (free_blocks[m].size >= size && free_blocks[m].size <= size + size / 4 &&
            (best < 0 || free_blocks[m].size < free_blocks[best].size))
            best = m;
    Memory found;
    if (best >= 0)
        found = take_free(best);
    else {
        found.size = size;
        keep_free_below(most_used > bytes_used + size ? most_used - bytes_used - size : 0);
        found.at = memory_from_system(size);
        if (!found.at) {
            keep_free_below(0);
            found.at = memory_from_system(size);
        }
    }
    if (found.at) {
        bytes_used += found.size;
        most_used = bytes_used > most_used ? bytes_used : most_used;
    }
    return found;
}

static void block_dealloc(PyObject *self)
{
    Block *block = (Block *)self;
    if (block->at) {
        bytes_used -= block->size;
        if (free_count == MOST_FREE)
            memory_to_system(take_free(0));
        free_blocks[free_count++] = (Memory){block->at, block->size};
        bytes_free += block->size;
    }
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int block_buffer(PyObject *self, Py_buffer *view, int flags)
{
    Block *block = (Block *)self;
    return PyBuffer_FillInfo(view, self, block->at, (Py_ssize_t)block->size, 0, flags);
}

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_buffer},
    {Py_tp_doc, "Memory that is used again when nothing refers to it any more."},
    {0, NULL},
};
static PyType_Spec block_spec = {
    "lyapflow_graph.kernels._cpu.Block", sizeof(Block), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, block_slots,
};
static PyObject *block_type;

static PyObject *new_block(PyObject *module, PyObject *bytes)
{
    const size_t size = PyLong_AsSize_t(bytes);
    if (size == (size_t)-1 && PyErr_Occurred())
        return NULL;
    allocfunc make = (allocfunc)PyType_GetSlot((PyTypeObject *)block_type, Py_tp_alloc);
    Block *block = (Block *)make((PyTypeObject *)block_type, 0);
    if (!block)
        return NULL;
    const Memory memory = take_memory(size);
    if (!memory.at) {
        Py_DECREF(block);
        return PyErr_NoMemory();
    }
    block->at = memory.at;
    block->size = memory.size;
    return (PyObject *)block;
}

static PyObject *release_blocks(PyObject *module, PyObject *unused)
{
    keep_free_below(0);
    most_used = bytes_used;
    Py_RETURN_NONE;
}

static PyObject *count_blocks(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("(nn)", (Py_ssize_t)bytes_used, (Py_ssize_t)bytes_free);
}
