/* The small kernels of a decoder's step in bfloat16 on a CPU: what kernels/reference.py computes, in one pass each.

   C with GCC's vector types and OpenMP; kernels/native_build.py compiles it, kernels/cpu_native.py calls it. Arithmetic
   is fp32, results are rounded to nearest even. All arrays are contiguous, widths multiples of 16 (half a head's, where
   it is rotated), and the caller has checked shapes. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef uint16_t bf16;
typedef int64_t i64;

#define LANES 16
typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))
#define ROWS_A_THREAD 8 /* fewer are not worth waking another thread */
#define PARALLEL_ROWS _Pragma("omp parallel for num_threads(threads) if (threads > 1 && rows > ROWS_A_THREAD)")

INLINE floats load(const bf16 *from) {
#ifdef __AVX512F__
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#else
    halves read;
    memcpy(&read, from, sizeof read);
    return (floats)(__builtin_convertvector(read, words) << 16);
#endif
}

INLINE floats load_floats(const float *from) {
    floats read;
    memcpy(&read, from, sizeof read);
    return read;
}

INLINE void store(bf16 *to, floats value) {
    words bits = (words)value, is_nan = (words)(value != value);
    words rounded = ((bits + 0x7fffu + ((bits >> 16) & 1u)) & ~is_nan) | (is_nan & 0x7fc00000u);
#ifdef __AVX512F__
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)rounded, 16)));
#else
    halves written = __builtin_convertvector(rounded >> 16, halves);
    memcpy(to, &written, sizeof written);
#endif
}

/* Of all lanes. */
INLINE float total(floats value) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += value[lane];
    return sum;
}

/* Lane by lane: a where it is chosen, else b. */
INLINE floats chosen(ints where, floats a, floats b) {
    return (floats)(((ints)a & where) | ((ints)b & ~where));
}

/* e^x within 2 ulp, x taken as at least -87 and at most 60 (polynomial: Cephes, expf) */
INLINE floats exponential(floats x) {
    x = chosen(x < -87.0f, (floats){0} - 87.0f, x);
    x = chosen(x > 60.0f, (floats){0} + 60.0f, x);
    floats whole = x * 1.44269504f + 12582912.0f - 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
    floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    floats sum = 1.9875691500e-4f * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return sum * (floats)((__builtin_convertvector(whole, ints) + 127) << 23);
}

/* ---- norms, gate, rotation ---- */

INLINE void normalise(bf16 *out, const bf16 *x, const bf16 *weight, i64 width, float eps) {
    floats squares = {0};
    for (i64 i = 0; i < width; i += LANES) squares += load(x + i) * load(x + i);
    float scale = 1.0f / sqrtf(total(squares) / (float)width + eps);
    for (i64 i = 0; i < width; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
}

void rms_norm(bf16 *out, const bf16 *x, const bf16 *weight, i64 rows, i64 width, float eps, int threads) {
    PARALLEL_ROWS
    for (i64 row = 0; row < rows; row++) normalise(out + row * width, x + row * width, weight, width, eps);
}

void add_rms_norm(bf16 *out, bf16 *summed, const bf16 *x, const bf16 *residual, const bf16 *weight, i64 rows,
                  i64 width, float eps, int threads) {
    PARALLEL_ROWS
    for (i64 row = 0; row < rows; row++) {
        i64 start = row * width;
        for (i64 i = start; i < start + width; i += LANES) store(summed + i, load(x + i) + load(residual + i));
        normalise(out + start, summed + start, weight, width, eps);
    }
}

void swiglu(bf16 *out, const bf16 *gate_up, i64 rows, i64 width, int threads) {
    PARALLEL_ROWS
    for (i64 row = 0; row < rows; row++) {
        const bf16 *gate = gate_up + 2 * row * width, *up = gate + width;
        for (i64 i = 0; i < width; i += LANES) {
            floats value = load(gate + i);
            store(out + row * width + i, value / (1.0f + exponential(-value)) * load(up + i));
        }
    }
}

INLINE void rotate(bf16 *to, const bf16 *from, const float *cosines, const float *sines, i64 half) {
    for (i64 i = 0; i < half; i += LANES) {
        floats low = load(from + i), high = load(from + i + half);
        floats cosine = load_floats(cosines + i), sine = load_floats(sines + i);
        store(to + i, low * cosine - high * sine);
        store(to + i + half, high * cosine + low * sine);
    }
}

void rope_kv_write(bf16 *query, const bf16 *qkv, const float *cosines, const float *sines, bf16 *k_cache,
                   bf16 *v_cache, const i64 *slots, i64 rows, i64 heads, i64 kv_heads, i64 dim, int threads) {
    i64 width = heads * dim, kv_width = kv_heads * dim;
    PARALLEL_ROWS
    for (i64 row = 0; row < rows; row++) {
        const bf16 *from = qkv + row * (width + 2 * kv_width);
        const float *cosine = cosines + row * dim / 2, *sine = sines + row * dim / 2;
        bf16 *key = k_cache + slots[row] * kv_width;
        for (i64 i = 0; i < width; i += dim) rotate(query + row * width + i, from + i, cosine, sine, dim / 2);
        for (i64 i = 0; i < kv_width; i += dim) rotate(key + i, from + width + i, cosine, sine, dim / 2);
        memcpy(v_cache + slots[row] * kv_width, from + width + kv_width, (size_t)kv_width * sizeof(bf16));
    }
}

/* ---- decode attention ---- */

#define CHUNK 256    /* tokens whose scores are held at a time */
#define MOST_HEADS 4 /* query heads that share what is read */
#define MOST_DIM 256

/* One lane's part of a dot product; the lanes' sum is the whole. */
INLINE floats multiply(const bf16 *a, const bf16 *b, const int dim) {
    floats sum = {0};
#ifdef __AVX512BF16__
    if (dim % 32 == 0) {
        for (int i = 0; i < dim; i += 32)
            sum = (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(a + i),
                                           (__m512bh)_mm512_loadu_si512(b + i));
        return sum;
    }
#endif
    for (int i = 0; i < dim; i += LANES) sum += load(a + i) * load(b + i);
    return sum;
}

#define FOLD(a, b, low, high) (__builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high))

/* The lanes' sums of 16 vectors, as one: a tree of folds, each of which adds halves of two vectors. */
INLINE floats totals(floats *v) {
    const ints low1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
    const ints low2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    const ints low4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
    const ints low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    for (int i = 0; i < 8; i++) v[i] = FOLD(v[2 * i], v[2 * i + 1], low1, low1 + 1);
    for (int i = 0; i < 4; i++) v[i] = FOLD(v[2 * i], v[2 * i + 1], low2, low2 + 2);
    for (int i = 0; i < 2; i++) v[i] = FOLD(v[2 * i], v[2 * i + 1], low4, low4 + 4);
    return FOLD(v[0], v[1], low8, low8 + 8);
}

typedef struct {
    const bf16 *k_cache, *v_cache;
    const i64 *table;
    i64 block_size, kv_heads, kv_head, first, end;
    float scale;
} Context;

INLINE void prefetch(const bf16 *row, const int dim) {
    for (int i = 0; i < dim; i += 32) __builtin_prefetch(row + i);
}

/* Where the keys and values of tokens start to start + num - 1 lie. */
INLINE void find_rows(i64 *rows, Context c, i64 start, int num, const int dim) {
    i64 column = start / c.block_size, offset = start % c.block_size;
    for (int t = 0; t < num; t++) {
        rows[t] = ((c.table[column] * c.block_size + offset) * c.kv_heads + c.kv_head) * dim;
        if (++offset == c.block_size) offset = 0, column++;
    }
}

/* Query heads of one KV head over the positions first to end - 1: softmax(scale q k) v, a chunk at a time, less the
   greatest score so far (arXiv 2205.14135). */
INLINE void attend(bf16 *out, const bf16 *query, Context c, const int heads, const int dim) {
    floats mixed[MOST_HEADS][MOST_DIM / LANES], scores[MOST_HEADS][CHUNK / LANES];
    float greatest[MOST_HEADS], weight[MOST_HEADS];
    i64 rows[CHUNK + LANES];
    for (int head = 0; head < heads; head++) {
        greatest[head] = -INFINITY, weight[head] = 0;
        for (int part = 0; part < dim / LANES; part++) mixed[head][part] = (floats){0};
    }
    for (i64 start = c.first; start < c.end; start += CHUNK) {
        int num = (int)(c.end - start < CHUNK ? c.end - start : CHUNK);
        find_rows(rows, c, start, num, dim);
        for (int t = num; t < num + LANES; t++) rows[t] = rows[num - 1]; /* scored in vain, in full vectors */
        for (int t = 0; t < num; t += LANES) {
            for (int i = 0; i < LANES; i++) {
                prefetch(c.k_cache + rows[t + i + (t + LANES < num ? LANES : 0)], dim);
                prefetch(c.v_cache + rows[t + i], dim);
            }
            for (int head = 0; head < heads; head++) {
                floats products[LANES];
                for (int i = 0; i < LANES; i++)
                    products[i] = multiply(query + head * dim, c.k_cache + rows[t + i], dim);
                scores[head][t / LANES] = totals(products) * c.scale;
            }
        }
        for (int head = 0; head < heads; head++) {
            float *score = (float *)scores[head], most = greatest[head];
            int parts = (num + LANES - 1) / LANES;
            floats top = scores[head][0]; /* the last vector repeats its last token: no greater than the greatest */
            for (int part = 1; part < parts; part++) top = chosen(scores[head][part] > top, scores[head][part], top);
            for (int lane = 0; lane < LANES; lane++) most = top[lane] > most ? top[lane] : most;
            floats sum = {0}, kept = exponential((floats){0} + (greatest[head] - most));
            for (int part = 0; part < parts; part++)
                sum += scores[head][part] = exponential(scores[head][part] - most);
            for (int t = num; t % LANES; t++) sum[t % LANES] -= score[t];
            greatest[head] = most;
            weight[head] = weight[head] * kept[0] + total(sum);
            for (int part = 0; part < dim / LANES; part++) mixed[head][part] *= kept[0];
        }
        for (int t = 0; t < num; t++)
            for (int part = 0; part < dim / LANES; part++) {
                floats value = load(c.v_cache + rows[t] + part * LANES);
                for (int head = 0; head < heads; head++) mixed[head][part] += ((float *)scores[head])[t] * value;
            }
    }
    for (int head = 0; head < heads; head++)
        for (int part = 0; part < dim / LANES; part++)
            store(out + head * dim + part * LANES, mixed[head][part] / weight[head]);
}

/* With numbers of heads and widths that the compiler knows it keeps the sums in registers. */
static void attend_any(bf16 *out, const bf16 *query, Context c, int heads, int dim) {
#define CASE(num, width) \
    if (heads == num && dim == width) { attend(out, query, c, num, width); return; }
    CASE(3, 64) CASE(4, 64) CASE(2, 128) CASE(4, 128)
    attend(out, query, c, heads, dim);
}

void decode_attention(bf16 *out, const bf16 *query, const bf16 *k_cache, const bf16 *v_cache, const i64 *tables,
                      i64 table_stride, const i64 *num_kv, i64 seqs, i64 heads, i64 kv_heads, i64 dim, i64 block_size,
                      float scale, i64 window, int threads) {
    i64 group = heads / kv_heads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 1)
    for (i64 task = 0; task < seqs * kv_heads; task++) {
        i64 seq = task / kv_heads, kv_head = task % kv_heads, end = num_kv[seq];
        i64 first = window > 0 && end > window ? end - window : 0;
        Context c = {k_cache, v_cache, tables + seq * table_stride, block_size, kv_heads, kv_head, first, end, scale};
        for (i64 head = 0; head < group; head += MOST_HEADS) {
            i64 place = (seq * heads + kv_head * group + head) * dim;
            i64 num = group - head < MOST_HEADS ? group - head : MOST_HEADS;
            attend_any(out + place, query + place, c, (int)num, (int)dim);
        }
    }
}
