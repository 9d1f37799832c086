/* Matrix products of the sizes that graphs of tens of nodes have, for one floating point type. Included twice.

   A tile of the result stays in registers while the loop runs over what is summed. The entries of the left matrix may lie
   anywhere, so that the same code takes it as it is or transposed; rows of the right one are read in vectors.
*/

typedef REAL NAME(Vector) __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));

#define VECTOR ((ptrdiff_t)(64 / sizeof(REAL)))
#define TILE_ROWS 6

typedef struct {
    const REAL *at;
    ptrdiff_t row, column; /* from one to the next */
} NAME(Left);

typedef struct {
    const REAL *at;
    ptrdiff_t row, vector; /* from one row to the next, from one vector of a row to the next */
} NAME(Right);

static ALWAYS_INLINE void NAME(tile)(
    const int rows, const int vectors, ptrdiff_t depth, NAME(Left) a, NAME(Right) b, const REAL *start,
    ptrdiff_t start_stride, REAL *to, ptrdiff_t stride)
{
    NAME(Vector) sum[TILE_ROWS][2];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = start ? *(const NAME(Vector) *)(start + i * start_stride + j * VECTOR) : (NAME(Vector)){0};
    for (ptrdiff_t k = 0; k < depth; k++) {
        NAME(Vector) row[2];
        for (int j = 0; j < vectors; j++)
            row[j] = *(const NAME(Vector) *)(b.at + k * b.row + j * b.vector);
        for (int i = 0; i < rows; i++) {
            const REAL x = a.at[i * a.row + k * a.column];
            for (int j = 0; j < vectors; j++)
                sum[i][j] += x * row[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            *(NAME(Vector) *)(to + i * stride + j * VECTOR) = sum[i][j];
}

/* to = start + a b, where `start` is one row for all (of stride 0), a matrix (which may be `to`), or nothing. The columns
   are a multiple of VECTOR. */
CLONES static void NAME(product)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, NAME(Left) a, NAME(Right) b, const REAL *start,
    ptrdiff_t start_stride, REAL *to, ptrdiff_t stride)
{
    for (ptrdiff_t j = 0, width; j < columns; j += width) {
        const int both = wide_registers && columns - j >= 2 * VECTOR;
        width = both ? 2 * VECTOR : VECTOR;
        const NAME(Right) right = {b.at + j / VECTOR * b.vector, b.row, b.vector};
        for (ptrdiff_t i = 0; i < rows; i += TILE_ROWS) {
            const NAME(Left) left = {a.at + i * a.row, a.row, a.column};
            const REAL *from = start ? start + i * start_stride + j : NULL;
            REAL *into = to + i * stride + j;
#define TILE(n)                                                                                                        \
    if (both)                                                                                                          \
        NAME(tile)(n, 2, depth, left, right, from, start_stride, into, stride);                                        \
    else                                                                                                               \
        NAME(tile)(n, 1, depth, left, right, from, start_stride, into, stride);                                        \
    break
            switch (rows - i) {
            case 1: TILE(1);
            case 2: TILE(2);
            case 3: TILE(3);
            case 4: TILE(4);
            case 5: TILE(5);
            default: TILE(TILE_ROWS);
            }
#undef TILE
        }
    }
}
