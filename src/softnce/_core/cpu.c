/* The rows of the three sums (contrast.py has the formulas), value and gradient in one pass over a row in cache.
 *
 * Plain C, libm only. cpu_rows.h is compiled for float and double and, on x86-64, for three instruction sets, the best
 * of which is chosen when the library is loaded; SOFTNCE_CPU=baseline or SOFTNCE_CPU=avx2 chooses a lower one.
 * Rows are divided over the OpenMP threads of torch, which is loaded before: they stay awake for a while after each of
 * its operations, and threads of our own would wait for their cores. Without OpenMP one thread does all. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#define HAS_THREADS
#endif

/* Soft targets: pairs (index), or dense rows (no index); a background of one mass, or of one per row. */
typedef struct {
    const int64_t *index; /* (N, s) */
    const void *weight;   /* (N, s), or (N, K) without index; NULL: 1 - mass */
    const void *masses;   /* (N), NULL: mass */
    const void *dist;     /* (K), NULL: uniform */
    int64_t s;
    double mass;
} Rows;

enum { COUNTED, EXPECTED, SOFT_TARGET };
enum { ADDS_OWN = 1, HAS_OWN = 2, DROPS_OWN = 4 };
enum { BAD_TARGET = 1, BAD_OWN, BAD_EXCLUDED, BAD_CANDIDATE, BAD_PLACE, NO_MEMORY };

/* cpu.py packs this: every field has eight bytes. */
typedef struct {
    int64_t kind, bits, n, k, stride, threads;
    const void *x; /* (n, k) rows at a distance of stride */
    void *gradient, *value, *of_temperature, *total;
    double scale, factor; /* 1/temperature; multiplies gradient and total */
    const void *noise;    /* (k) log noise */
    const double *counts; /* (k) */
    const void *class_weight, *row_weight;
    const uint8_t *mask;
    const int64_t *exclude; /* (n, e) */
    int64_t e, flags;
    Rows target, own, candidate;
    int64_t m;
    const uint8_t *candidate_mask;
    const int64_t *place;                     /* (n) position of the own target among the candidates, −1: not among them */
    const double *signature, *other_signature; /* (n, 4), (m, 4) */
    int64_t shares_background;
} Call;

typedef struct Job Job;
typedef void (*Body)(Job *job, char *scratch, int64_t start, int64_t stop);

struct Job {
    const Call *call;
    Body body;
    size_t scratch; /* bytes of each thread */
    int64_t rows, chunk;
    int64_t next;  /* first row nobody has taken */
    int64_t error; /* what << 48 | row + 1 */
    double *counts; /* (k) with what all rows add or take out; NULL: ones */
    /* soft target: distinct candidates and the columns they occupy */
    int64_t m, columns;
    int64_t *column;    /* (columns) its class */
    int32_t *place_of;  /* (m of the call) the distinct candidate */
    int32_t *at;        /* (m, s) its columns */
    void *weight;       /* (m, s) */
    double *times;      /* (m) how often it occurs */
    int64_t *original;  /* (m) one of its rows */
};

#define ROW 100 /* a row costs as much as so many of its classes */

static void fail(Job *job, int64_t what, int64_t row) { job->error = what << 48 | (row + 1); }

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed to inlined functions only */
#endif
#define LANES 16
#define ROUNDING 1e-12 /* as in contrast.py */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define NAME(f) CAT(f, SUFFIX)

#define TARGET
#define REAL float
#define SUFFIX f32
#include "cpu_rows.h"
#undef REAL
#undef SUFFIX
#define REAL double
#define SUFFIX f64
#define IS_DOUBLE
#include "cpu_rows.h"
#undef IS_DOUBLE
#undef REAL
#undef SUFFIX
#undef TARGET

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_CLONES
#define TARGET __attribute__((target("avx2,fma,bmi2")))
#define REAL float
#define SUFFIX f32_avx2
#include "cpu_rows.h"
#undef REAL
#undef SUFFIX
#define REAL double
#define SUFFIX f64_avx2
#define IS_DOUBLE
#include "cpu_rows.h"
#undef IS_DOUBLE
#undef REAL
#undef SUFFIX
#undef TARGET
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,bmi2")))
#define REAL float
#define SUFFIX f32_avx512
#include "cpu_rows.h"
#undef REAL
#undef SUFFIX
#define REAL double
#define SUFFIX f64_avx512
#define IS_DOUBLE
#include "cpu_rows.h"
#undef IS_DOUBLE
#undef REAL
#undef SUFFIX
#undef TARGET
#endif

/* 0: what every CPU of this kind has, 1: AVX2, 2: AVX-512 */
EXPORT int64_t softnce_level(void)
{
    static int64_t level = -1;
    if (level < 0) {
        int64_t found = 0;
#ifdef HAS_CLONES
        const char *wanted = getenv("SOFTNCE_CPU");
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
            found = 1;
        if (found && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vl")) found = 2;
        if (wanted && !strcmp(wanted, "baseline")) found = 0;
        if (wanted && !strcmp(wanted, "avx2") && found > 1) found = 1;
#endif
        level = found;
    }
    return level;
}

static Body body_of(const Call *call)
{
    static const Body bodies[][4] = {
        {rows_f32, tiles_f32, rows_f64, tiles_f64},
#ifdef HAS_CLONES
        {rows_f32_avx2, tiles_f32_avx2, rows_f64_avx2, tiles_f64_avx2},
        {rows_f32_avx512, tiles_f32_avx512, rows_f64_avx512, tiles_f64_avx512},
#endif
    };
    return bodies[softnce_level()][(call->bits == 64) * 2 + (call->kind == SOFT_TARGET)];
}

/* ---------------------------------------------------------------------------------------------------- threads */

static int64_t take(Job *job)
{
#ifdef HAS_THREADS
    return __atomic_fetch_add(&job->next, job->chunk, __ATOMIC_RELAXED);
#else
    int64_t first = job->next;
    job->next += job->chunk;
    return first;
#endif
}

static void work(void *given)
{
    Job *job = given;
    char *memory = calloc(1, job->scratch + 64);
    if (!memory) {
        fail(job, NO_MEMORY, 0);
        return;
    }
    char *aligned = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    for (int64_t first; (first = take(job)) < job->rows;) {
        int64_t stop = first + job->chunk < job->rows ? first + job->chunk : job->rows;
        job->body(job, aligned, first, stop);
    }
    free(memory);
}

#ifdef HAS_THREADS
typedef void Parallel(void (*)(void *), void *, unsigned, unsigned);
static Parallel *parallel;
static pid_t process;

__attribute__((constructor)) static void find_threads(void)
{
    *(void **)&parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    process = getpid();
}

static void run(Job *job, int64_t threads)
{
    int64_t chunks = (job->rows + job->chunk - 1) / job->chunk;
    if (threads > chunks) threads = chunks;
    /* The threads do not exist in a forked process, and OpenMP would wait for them. */
    if (threads > 1 && parallel && process == getpid()) parallel(work, job, (unsigned)threads, 0);
    else work(job);
}
#else
static void run(Job *job, int64_t threads) { (void)threads; work(job); }
#endif

/* -------------------------------------------------------------------------------------------------- preparation */

/* Counts with the background that every row adds or takes out alike. */
static int prepare_counts(Job *job, const Call *call)
{
    int adds = call->flags & ADDS_OWN, takes = call->flags & HAS_OWN;
    const Rows *own = adds ? &call->target : &call->own;
    double shared = (adds || takes) && own->index && !own->masses ? own->mass * (adds ? 1 : -1) : 0;
    job->counts = malloc(sizeof(double) * (size_t)(call->k + 1));
    if (!job->counts) return 0;
    for (int64_t k = 0; k < call->k; k++) {
        double spread = !shared ? 0 : !own->dist ? 1.0 / (double)call->k
            : call->bits == 64 ? ((const double *)own->dist)[k] : ((const float *)own->dist)[k];
        double all = call->counts ? call->counts[k] : 1, left = all + shared * spread;
        job->counts[k] = fabs(left) > ROUNDING * all ? left : 0;
    }
    return 1;
}

static double weight_of(const Rows *rows, int64_t bits, int64_t place)
{
    if (!rows->weight) return 1 - rows->mass;
    return bits == 64 ? ((const double *)rows->weight)[place] : ((const float *)rows->weight)[place];
}

static int same_candidate(const Call *call, int64_t a, int64_t b)
{
    const Rows *rows = &call->candidate;
    size_t s = (size_t)rows->s, size = (size_t)call->bits / 8;
    const char *weight = rows->weight, *masses = rows->masses;
    if (memcmp(rows->index + a * (int64_t)s, rows->index + b * (int64_t)s, 8 * s)) return 0;
    if (weight && memcmp(weight + (size_t)a * s * size, weight + (size_t)b * s * size, s * size)) return 0;
    return !masses || !memcmp(masses + (size_t)a * size, masses + (size_t)b * size, size);
}

static uint64_t hash_of(const Call *call, int64_t c)
{
    const Rows *rows = &call->candidate;
    uint64_t key = 0;
    for (int64_t j = 0; j < rows->s; j++) {
        double weight = weight_of(rows, call->bits, c * rows->s + j);
        uint64_t bits;
        memcpy(&bits, &weight, 8);
        key = (key ^ (uint64_t)rows->index[c * rows->s + j] ^ (bits >> 3)) * 0x9E3779B97F4A7C15u;
        key ^= key >> 29;
    }
    return key;
}

/* Numbers equal candidates once; original[d] is a row of the d-th. Gives up where most of the first ones differ. */
static int64_t number_candidates(Job *job, const Call *call)
{
    int64_t found = 0, size = 64;
    while (size < 2 * call->m) size *= 2;
    int32_t *table = malloc(sizeof(int32_t) * (size_t)size);
    int distinct = !table || call->m < 64;
    if (table) memset(table, -1, sizeof(int32_t) * (size_t)size);
    for (int64_t c = 0; c < call->m; c++) {
        if (call->candidate_mask && !call->candidate_mask[c]) {
            job->place_of[c] = -1;
            continue;
        }
        int64_t d = -1;
        if (!distinct) {
            int64_t slot = (int64_t)(hash_of(call, c) >> 20) & (size - 1);
            while ((d = table[slot]) >= 0 && !same_candidate(call, job->original[d], c)) slot = (slot + 1) & (size - 1);
            if (d < 0) table[slot] = (int32_t)found;
        }
        if (d < 0) {
            job->original[found] = c;
            job->times[found] = 0;
            d = found++;
        }
        job->times[d]++;
        job->place_of[c] = (int32_t)d;
        if (c == 255 && found > 192) distinct = 1;
    }
    free(table);
    return found;
}

static int prepare_candidates(Job *job, const Call *call)
{
    const Rows *rows = &call->candidate;
    int64_t s = rows->s;
    size_t pairs = (size_t)(call->m * s), m = (size_t)call->m;
    job->place_of = malloc(4 * m);
    job->original = malloc(8 * m);
    job->times = malloc(8 * m);
    job->at = malloc(4 * pairs);
    job->weight = malloc(8 * pairs);
    job->column = malloc(8 * (size_t)call->k);
    int32_t *column_of = calloc((size_t)call->k, 4);
    int ok = job->place_of && job->original && job->times && job->at && job->weight && job->column && column_of;
    for (int64_t p = 0; ok && p < call->m * s; p++) {
        if (call->candidate_mask && !call->candidate_mask[p / s]) continue;
        if ((uint64_t)rows->index[p] >= (uint64_t)call->k) {
            fail(job, BAD_CANDIDATE, p / s);
            ok = 0;
        } else
            column_of[rows->index[p]] = 1;
    }
    if (ok) {
        job->m = number_candidates(job, call);
        for (int64_t k = 0; k < call->k; k++)
            if (column_of[k]) {
                column_of[k] = (int32_t)job->columns;
                job->column[job->columns++] = k;
            }
        for (int64_t d = 0; d < job->m; d++)
            for (int64_t j = 0; j < s; j++) {
                int64_t from = job->original[d] * s + j, to = d * s + j;
                double weight = weight_of(rows, call->bits, from);
                if (!rows->weight && rows->masses)
                    weight = 1 - (call->bits == 64 ? ((const double *)rows->masses)[job->original[d]]
                                                   : ((const float *)rows->masses)[job->original[d]]);
                job->at[to] = column_of[rows->index[from]];
                if (call->bits == 64) ((double *)job->weight)[to] = weight;
                else ((float *)job->weight)[to] = (float)weight;
            }
    } else if (!job->error)
        fail(job, NO_MEMORY, 0);
    free(column_of);
    return ok;
}

/* Fresh memory in pages of two megabytes: with small ones zeroing and mapping it takes longer than the loss. */
static void expect_large(const Call *call)
{
#if defined(HAS_THREADS) && defined(MADV_HUGEPAGE)
    uintptr_t bytes = (uintptr_t)(call->n * call->k * call->bits / 8), page = (uintptr_t)1 << 21;
    uintptr_t start = ((uintptr_t)call->gradient + page - 1) & ~(page - 1);
    uintptr_t stop = ((uintptr_t)call->gradient + bytes) & ~(page - 1);
    if (call->gradient && bytes > 2 * page && stop > start) madvise((void *)start, stop - start, MADV_HUGEPAGE);
#else
    (void)call;
#endif
}

/* Returns 0, or what is wrong << 48 | its row + 1. */
EXPORT int64_t softnce_rows(const void *packed)
{
    Call call;
    memcpy(&call, packed, sizeof call);
    Job job = {.call = &call, .body = body_of(&call), .rows = call.n};
    int is_tiled = call.kind == SOFT_TARGET;
    size_t width = (size_t)(call.k + 2 * LANES), size = (size_t)call.bits / 8;
    void *values = call.value ? NULL : malloc(size * (size_t)call.n);
    if (values) call.value = values;
    if (!call.value) return (int64_t)NO_MEMORY << 48 | 1;
    if (is_tiled ? prepare_candidates(&job, &call) : prepare_counts(&job, &call)) {
        expect_large(&call);
        double cost = (double)call.n * (double)(is_tiled ? 2 * job.m + call.k : call.k + ROW);
        job.scratch = is_tiled ? size * LANES * (size_t)(2 * job.columns) + (size_t)job.m
                               : (4 * size + sizeof(double)) * width;
        job.chunk = is_tiled ? LANES : 1 + (1 << 14) / (call.k + ROW);
        run(&job, cost < 3e4 ? 1 : call.threads);
        if (!job.error && call.total) {
            double total = 0;
            for (int64_t i = 0; i < call.n; i++)
                total += call.bits == 64 ? ((double *)call.value)[i] : ((float *)call.value)[i];
            if (call.bits == 64) *(double *)call.total = total * call.factor;
            else *(float *)call.total = (float)(total * call.factor);
        }
    } else if (!job.error)
        fail(&job, NO_MEMORY, 0);
    free(values);
    free(job.counts);
    free(job.column);
    free(job.place_of);
    free(job.at);
    free(job.weight);
    free(job.times);
    free(job.original);
    return job.error;
}

/* Recognises dense rows (n, k) as at most `most` peaks on one floor: writes the classes and weights above the floor,
 * highest first, (n, most), and the floor. Returns the peaks of the fullest row, or 0 where rows are dense. */
EXPORT int64_t softnce_recognise(const void *rows, int64_t bits, int64_t n, int64_t k, int64_t most, int64_t *index,
                                 void *weight, double *floor)
{
    static int64_t (*const found[][2])(const void *, int64_t, int64_t, int64_t, int64_t *, void *, double *) = {
        {recognise_f32, recognise_f64},
#ifdef HAS_CLONES
        {recognise_f32_avx2, recognise_f64_avx2},
        {recognise_f32_avx512, recognise_f64_avx512},
#endif
    };
    return found[softnce_level()][bits == 64](rows, n, k, most, index, weight, floor);
}

/* Adds dense rows (n, k) with a mask of 1, or all without a mask, to total (k). */
EXPORT void softnce_class_mass(const void *rows, int64_t bits, int64_t n, int64_t k, const uint8_t *mask, double *total)
{
    static void (*const sums[][2])(const void *, int64_t, int64_t, const uint8_t *, double *) = {
        {class_mass_f32, class_mass_f64},
#ifdef HAS_CLONES
        {class_mass_f32_avx2, class_mass_f64_avx2},
        {class_mass_f32_avx512, class_mass_f64_avx512},
#endif
    };
    sums[softnce_level()][bits == 64](rows, n, k, mask, total);
}
