/* The rows of one floating point type and instruction set; cpu.c includes this file with REAL, SUFFIX and TARGET.
 * Loops run over rows padded to LANES, so that none has a remainder where it is dear. */
#ifdef IS_DOUBLE
#define INT int64_t
#define UINT uint64_t
#define MAGIC 6755399441055744.0 /* 1.5·2^52: adding it rounds to a whole number */
#define MANTISSA 52
#define EXP_TERMS 13
#define LOG_TERMS 16
#define EXP_MIN -708.0
#define LN2_HIGH 0.693147180369123816490
#define LN2_LOW 1.90821492927058770002e-10
#define LARGEST DBL_MAX
#define SPACING DBL_EPSILON
#define EXP_MAX 600.0
#define LOG log
#define TINY_SUM 1e-200
#else
#define INT int32_t
#define UINT uint32_t
#define MAGIC 12582912.0f
#define MANTISSA 23
#define EXP_TERMS 7
#define LOG_TERMS 7
#define EXP_MIN -87.0f
#define LN2_HIGH 0.693145751953125f
#define LN2_LOW 1.428606765330187e-6f
#define LARGEST FLT_MAX
#define SPACING FLT_EPSILON
#define EXP_MAX 80.0f
#define LOG logf
#define TINY_SUM 1e-20f
#endif
#define LOWEST ((REAL)(-LARGEST / 268435456.0)) /* stands for a logit of -inf, as in contrast.py */
#define INLINE static inline __attribute__((always_inline, unused)) TARGET

/* LANES numbers; the compiler splits them where registers are shorter. */
typedef REAL NAME(V) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef INT NAME(I) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef UINT NAME(U) __attribute__((vector_size(LANES * sizeof(REAL)))); /* whose sums may wrap */
typedef REAL NAME(Half) __attribute__((vector_size(LANES / 2 * sizeof(REAL))));
typedef REAL NAME(Quarter) __attribute__((vector_size(LANES / 4 * sizeof(REAL))));
#define V NAME(V)
#define I NAME(I)

static const volatile REAL NAME(lowest) = LOWEST; /* GCC makes two instructions of a maximum with a constant */

INLINE V NAME(load)(const REAL *from) { return *(const V *)from; }
INLINE void NAME(store)(REAL *to, V v) { *(V *)to = v; }
INLINE V NAME(choose)(I mask, V yes, V no) { return (V)(((I)yes & mask) | ((I)no & ~mask)); }

/* The lower or higher of two numbers; b where one is NaN. */
INLINE V NAME(least)(V a, V b)
{
    V found;
#pragma omp simd
    for (int l = 0; l < LANES; l++) found[l] = a[l] < b[l] ? a[l] : b[l];
    return found;
}

INLINE V NAME(most)(V a, V b)
{
    V found;
#pragma omp simd
    for (int l = 0; l < LANES; l++) found[l] = a[l] > b[l] ? a[l] : b[l];
    return found;
}

INLINE REAL NAME(sum_of)(V v)
{
    union { V whole; NAME(Half) part[2]; } halves = {.whole = v};
    union { NAME(Half) whole; NAME(Quarter) part[2]; } quarters = {.whole = halves.part[0] + halves.part[1]};
    NAME(Quarter) q = quarters.part[0] + quarters.part[1];
    return (q[0] + q[2]) + (q[1] + q[3]);
}

INLINE REAL NAME(highest_of)(V v)
{
    REAL high[LANES / 2], top = -LARGEST;
    union { V whole; REAL part[LANES]; } all = {.whole = v};
#pragma omp simd
    for (int l = 0; l < LANES / 2; l++) {
        REAL a = all.part[l], b = all.part[l + LANES / 2];
        high[l] = a > b ? a : b;
    }
    for (int l = 0; l < LANES / 2; l++) top = high[l] > top ? high[l] : top;
    return top;
}

/* e^x for x ≤ EXP_MAX, within 2 ulp; 0 below EXP_MIN. In pairs of terms, whose chain is half as long. */
INLINE V NAME(exp)(V x)
{
    static const REAL c[] = {1, 1, (REAL)(1 / 2.), (REAL)(1 / 6.), (REAL)(1 / 24.), (REAL)(1 / 120.), (REAL)(1 / 720.),
        (REAL)(1 / 5040.), (REAL)(1 / 40320.), (REAL)(1 / 362880.), (REAL)(1 / 3628800.), (REAL)(1 / 39916800.),
        (REAL)(1 / 479001600.), (REAL)(1 / 6227020800.)};
    V shifted = x * (REAL)1.4426950408889634 + MAGIC, whole = shifted - MAGIC;
    V r = x - whole * LN2_HIGH - whole * LN2_LOW, square = r * r, p = r * c[EXP_TERMS] + c[EXP_TERMS - 1];
    for (int i = EXP_TERMS - 3; i >= 0; i -= 2) p = p * square + (r * c[i + 1] + c[i]);
    return (V)(((NAME(U))p + ((NAME(U))shifted << MANTISSA)) & ~(NAME(U))(x < EXP_MIN));
}

/* log(1 + low/high) for 0 ≤ low ≤ high, within 2 ulp: twice the area tangent of low/(2·high + low) ≤ 1/3. */
INLINE V NAME(log1p_ratio)(V low, V high)
{
    static const REAL c[] = {2, (REAL)(2 / 3.), (REAL)(2 / 5.), (REAL)(2 / 7.), (REAL)(2 / 9.), (REAL)(2 / 11.),
        (REAL)(2 / 13.), (REAL)(2 / 15.), (REAL)(2 / 17.), (REAL)(2 / 19.), (REAL)(2 / 21.), (REAL)(2 / 23.),
        (REAL)(2 / 25.), (REAL)(2 / 27.), (REAL)(2 / 29.), (REAL)(2 / 31.), (REAL)(2 / 33.)};
    V y = low / (high + high + low), square = y * y, p = square * c[LOG_TERMS] + c[LOG_TERMS - 1];
    for (int i = LOG_TERMS - 2; i >= 0; i--) p = p * square + c[i];
    return y * p;
}

INLINE REAL NAME(at_least)(REAL x, REAL low) { return x < low ? low : x; }

INLINE REAL NAME(mass)(const Rows *rows, int64_t i)
{
    return rows->masses ? ((const REAL *)rows->masses)[i] : (REAL)rows->mass;
}

INLINE REAL NAME(pair)(const Rows *rows, int64_t i, int64_t j)
{
    if (rows->weight) return ((const REAL *)rows->weight)[i * rows->s + j];
    return rows->masses ? 1 - ((const REAL *)rows->masses)[i] : (REAL)(1 - rows->mass);
}

INLINE int NAME(is_full)(const Rows *rows) { return !rows->index || rows->masses || rows->mass != 0; }

INLINE int NAME(is_bad)(const Rows *rows, int64_t i, int64_t k)
{
    for (int64_t j = 0; rows->index && j < rows->s; j++)
        if ((uint64_t)rows->index[i * rows->s + j] >= (uint64_t)k) return 1;
    return 0;
}

/* Row i with all its classes. */
INLINE void NAME(fill)(const Rows *rows, int64_t i, int64_t k, REAL *a)
{
    REAL mass = NAME(mass)(rows, i);
    const REAL *dist = rows->dist, *dense = rows->index ? NULL : (const REAL *)rows->weight + i * k;
    if (dense && mass == 0) {
        memcpy(a, dense, (size_t)k * sizeof *a);
        return;
    }
    REAL flat = mass / (REAL)k;
    if (dist)
        for (int64_t j = 0; j < k; j++) a[j] = mass * dist[j];
    else
        for (int64_t j = 0; j < k; j++) a[j] = flat;
    if (dense)
        for (int64_t j = 0; j < k; j++) a[j] += dense[j];
    for (int64_t j = 0; rows->index && j < rows->s; j++) a[rows->index[i * rows->s + j]] += NAME(pair)(rows, i, j);
}

/* The counts of row i that differ from those of all rows; `undo` puts these back. `sums` (K,) is 0 before and after. */
INLINE void NAME(change_counts)(const Job *job, int64_t i, const REAL *a, REAL *c, double *sums, int undo)
{
    const Call *call = job->call;
    int drops = call->flags & DROPS_OWN, adds = call->flags & ADDS_OWN, takes = !drops && call->flags & HAS_OWN;
    const Rows *own = takes ? &call->own : &call->target;
    const double *n = job->counts;
    int64_t k = call->k;
    if (adds || takes || drops) {
        int whole = drops ? NAME(is_full)(own) : !own->index || own->masses != NULL;
        if (whole && undo) /* the next row writes all of them anyway */
            ;
        else if (whole && drops)
            for (int64_t j = 0; j < k; j++) c[j] = a[j] > 0 || n[j] <= 0 ? 0 : (REAL)n[j];
        else if (whole) {
            double mass = NAME(mass)(own, i), sign = adds ? 1 : -1;
            const REAL *dist = own->dist, *dense = own->index ? NULL : (const REAL *)own->weight + i * k;
            if (dense && mass == 0)
                for (int64_t j = 0; j < k; j++) {
                    double left = n[j] + sign * dense[j];
                    c[j] = (REAL)(left > ROUNDING * fabs(n[j]) ? left : 0);
                }
            else
                for (int64_t j = 0; j < k; j++) {
                    double part = (dense ? dense[j] : 0) + mass * (dist ? dist[j] : 1.0 / (double)k);
                    double left = n[j] + sign * part;
                    c[j] = (REAL)(left > ROUNDING * fabs(n[j]) ? left : 0);
                }
        }
        const int64_t *index = own->index + i * own->s;
        int64_t pairs = own->index && !(whole && (undo || drops)) ? own->s : 0;
        for (int64_t j = 0; j < pairs && !undo; j++) /* a class named twice has both weights */
            sums[index[j]] += own->weight || own->masses ? (double)NAME(pair)(own, i, j) : 1 - own->mass;
        for (int64_t j = 0; j < pairs; j++) {
            int64_t class = index[j];
            double all = sums[class], base = n[class], left;
            if (whole) base += (adds ? 1 : -1) * (double)NAME(mass)(own, i)
                * (own->dist ? ((const REAL *)own->dist)[class] : 1.0 / (double)k);
            left = drops ? (all > 0 ? 0 : base) : base + (adds ? all : -all);
            left = undo ? n[class] : left;
            c[class] = left > ROUNDING * fabs(n[class]) ? (REAL)left : 0;
        }
        for (int64_t j = 0; j < pairs; j++) sums[index[j]] = 0;
    }
    for (int64_t j = 0; j < call->e; j++) {
        int64_t class = call->exclude[i * call->e + j];
        if (class >= 0) c[class] = undo && n[class] > 0 ? (REAL)n[class] : 0;
    }
}

INLINE void NAME(temperature)(const Call *call, int64_t i, const REAL *x, const REAL *g)
{
    REAL total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < call->k; j++) total += g[j] * NAME(at_least)(x[j], LOWEST);
    ((REAL *)call->of_temperature)[i] = -(REAL)call->scale * total;
}

/* A row being worked on: arrays of the classes, padded to LANES. */
typedef struct {
    REAL *s, *c, *u; /* scores, counts, (counts times) e^(s - top) */
    REAL *a;         /* targets with all their classes; of pairs alone, how each pulls its class */
    double *sums;
    REAL top, sum, rest; /* highest score that counts, sum of u over counts, its log */
} NAME(Row);

/* Scores of a row, at least LANES of them, and the highest. */
INLINE void NAME(score)(const Call *call, NAME(Row) *r, const REAL *x, const REAL *noise)
{
    int64_t last = call->k > LANES ? call->k - LANES : 0;
    REAL scale = (REAL)call->scale;
    V lowest = (V){0} + NAME(lowest), top = (V){0} - LARGEST;
    for (int64_t j = 0; j < call->k; j += LANES) {
        int64_t at = j < last ? j : last; /* the last ones overlap */
        V s = NAME(most)(lowest, NAME(load)(x + at)) * scale;
        if (noise) s -= NAME(load)(noise + at);
        NAME(store)(r->s + at, s);
        top = NAME(most)(s, top);
    }
    r->top = NAME(highest_of)(top);
}

/* e^(s - top) of each class, times its count unless counts stay apart, and their sum. */
INLINE void NAME(exponentiate)(NAME(Row) *r, int64_t padded, int apart, int bounded)
{
    V sum = {0}, top = (V){0} + r->top;
    REAL *s = r->s, *c = r->c, *u = r->u;
    for (int64_t j = 0; j < padded; j += LANES) {
        V gap = NAME(load)(s + j) - top;
        V e = NAME(exp)(bounded ? gap : NAME(least)((V){0} + EXP_MAX, gap)), counted = NAME(load)(c + j) * e;
        NAME(store)(u + j, apart ? e : counted);
        sum += counted;
    }
    r->sum = NAME(sum_of)(sum);
}

/* As above where the highest class hardly counts: from the highest that does. Returns 0 if none does. */
INLINE int NAME(exponentiate_low)(NAME(Row) *r, int64_t k, int64_t padded, int apart)
{
    r->top = -LARGEST;
    for (int64_t j = 0; j < k; j++)
        if (r->c[j] > 0 && r->s[j] > r->top) r->top = r->s[j];
    if (r->top == -LARGEST) return 0;
    NAME(exponentiate)(r, padded, apart, 0);
    return 1;
}

/* `expected` where each class has weight: returns the loss; `a` becomes how each class is pulled, in all `pulled`. */
INLINE REAL NAME(expect_each)(NAME(Row) *r, int64_t padded, REAL *pulled)
{
    V losses = {0}, pulls = {0}, sum = (V){0} + r->sum;
    for (int64_t j = 0; j < padded; j += LANES) {
        V a = NAME(load)(r->a + j), e = NAME(load)(r->u + j), above = NAME(load)(r->s + j) - r->top;
        NAME(store)(r->u + j, NAME(load)(r->c + j) * e);
        e = NAME(choose)((I)(above > EXP_MAX), (V){0} + (REAL)INFINITY, e); /* no loss and no pull */
        V pull = a * (sum / (sum + e));
        losses += a * (NAME(most)((V){0}, r->rest - above) + NAME(log1p_ratio)(NAME(least)(e, sum), NAME(most)(e, sum)));
        pulls += pull;
        NAME(store)(r->a + j, pull);
    }
    *pulled = NAME(sum_of)(pulls);
    return NAME(sum_of)(losses);
}

/* `counted` where each class has weight, as above. */
INLINE REAL NAME(count_each)(NAME(Row) *r, int64_t padded, REAL *pulled)
{
    V losses = {0}, pulls = {0};
    for (int64_t j = 0; j < padded; j += LANES) {
        V a = NAME(load)(r->a + j);
        losses -= a * (NAME(load)(r->s + j) - r->top);
        pulls += a;
    }
    *pulled = NAME(sum_of)(pulls);
    return NAME(sum_of)(losses) + *pulled * r->rest;
}

/* Either where pairs are all. */
INLINE REAL NAME(pairs)(const Call *call, NAME(Row) *r, int64_t i, REAL *pulled)
{
    const Rows *t = &call->target;
    const REAL *cw = call->class_weight;
    REAL loss = 0;
    *pulled = 0;
    for (int64_t j = 0; j < t->s; j++) {
        int64_t class = t->index[i * t->s + j];
        REAL w = NAME(pair)(t, i, j), above = r->s[class] - r->top, gap = r->rest - above, sum = r->sum;
        if (call->kind == EXPECTED) { /* the pull does not wait for the logarithm, as the gradient waits for the pull */
            REAL e = above > EXP_MAX ? (REAL)INFINITY : NAME(exp)((V){above})[0]; /* far above: no loss and no pull */
            V low = {e < sum ? e : sum}, high = (V){0} + (e < sum ? sum : e);
            loss += w * ((gap > 0 ? gap : 0) + NAME(log1p_ratio)(low, high)[0]);
            w *= sum / (sum + e);
        } else {
            w = cw ? w * cw[class] : w;
            loss += w * gap;
        }
        r->a[j] = w;
        *pulled += w;
    }
    return loss;
}

/* One row of `counted` or `expected`; the counts are there. */
INLINE void NAME(row)(const Call *call, NAME(Row) *r, int64_t i, const REAL *noise)
{
    const Rows *t = &call->target;
    const REAL *x = (const REAL *)call->x + i * call->stride, *cw = call->class_weight;
    REAL *g = call->gradient ? (REAL *)call->gradient + i * call->k : NULL, *value = (REAL *)call->value + i;
    int64_t k = call->k, last = k > LANES ? k - LANES : 0, padded = (k + LANES - 1) / LANES * LANES;
    int full = NAME(is_full)(t), each = full && call->kind == EXPECTED;
    REAL rw = call->row_weight ? ((const REAL *)call->row_weight)[i] : 1, few[LANES] = {0}, pulled;
    REAL f = (REAL)(rw * call->factor * call->scale);
    for (int64_t j = 0; k < LANES && j < LANES; j++) few[j] = x[j < k ? j : 0];
    NAME(score)(call, r, k < LANES ? few : x, noise);
    NAME(exponentiate)(r, padded, each, 1);
    if (r->sum < TINY_SUM && !NAME(exponentiate_low)(r, k, padded, each)) { /* nothing to contrast with */
        *value = 0;
        if (g) memset(g, 0, (size_t)k * sizeof *g);
        if (call->of_temperature) ((REAL *)call->of_temperature)[i] = 0;
        return;
    }
    r->rest = LOG(r->sum);
    for (int64_t j = 0; full && cw && !each && j < k; j++) r->a[j] *= cw[j];
    *value = rw * (each ? NAME(expect_each)(r, padded, &pulled) : full ? NAME(count_each)(r, padded, &pulled)
                        : NAME(pairs)(call, r, i, &pulled));
    if (!g) return;
    REAL push = f * pulled / r->sum, *to = k < LANES ? few : g;
    for (int64_t j = 0; j < k; j += LANES) {
        int64_t at = j < last ? j : last;
        V u = push * NAME(load)(r->u + at);
        if (full) u -= f * NAME(load)(r->a + at);
        NAME(store)(to + at, u);
    }
    for (int64_t j = 0; k < LANES && j < k; j++) g[j] = few[j];
    for (int64_t j = 0; !full && j < t->s; j++) g[t->index[i * t->s + j]] -= f * r->a[j];
    if (call->of_temperature) NAME(temperature)(call, i, x, g);
}

INLINE int NAME(is_ignored)(const Call *call, int64_t i)
{
    if (!call->mask || call->mask[i]) return 0;
    ((REAL *)call->value)[i] = 0;
    if (call->of_temperature) ((REAL *)call->of_temperature)[i] = 0;
    if (call->gradient) memset((REAL *)call->gradient + i * call->k, 0, (size_t)call->k * sizeof(REAL));
    return 1;
}

static TARGET void NAME(rows)(Job *job, char *scratch, int64_t start, int64_t stop)
{
    const Call *call = job->call;
    int64_t k = call->k, padded = (k + LANES - 1) / LANES * LANES;
    REAL *s = (REAL *)scratch, few[LANES] = {0};
    const REAL *noise = call->noise;
    NAME(Row) r = {.s = s, .c = s + padded, .u = s + 2 * padded, .a = s + 3 * padded};
    r.sums = (double *)(r.a + padded);
    for (int64_t j = 0; j < k; j++) r.c[j] = job->counts[j] > 0 ? (REAL)job->counts[j] : 0;
    for (int64_t j = k; j < padded; j++) s[j] = r.c[j] = 0;
    for (int64_t j = 0; noise && k < LANES && j < LANES; j++) few[j] = noise[j < k ? j : 0];
    if (noise && k < LANES) noise = few;
    for (int64_t i = start; i < stop; i++) {
        if (NAME(is_ignored)(call, i)) continue;
        int bad = NAME(is_bad)(&call->target, i, k) ? BAD_TARGET : 0;
        if (!bad && call->flags & HAS_OWN && NAME(is_bad)(&call->own, i, k)) bad = BAD_OWN;
        for (int64_t j = 0; j < call->e; j++)
            if (call->exclude[i * call->e + j] >= k) bad = BAD_EXCLUDED;
        if (bad) {
            fail(job, bad, i);
            return;
        }
        if (NAME(is_full)(&call->target)) NAME(fill)(&call->target, i, k, r.a);
        for (int64_t j = k; j < padded; j++) r.a[j] = 0;
        NAME(change_counts)(job, i, r.a, r.c, r.sums, 0);
        NAME(row)(call, &r, i, noise);
        NAME(change_counts)(job, i, r.a, r.c, r.sums, 1);
    }
}

/* -------------------------------------------------------------------------------- soft target: tiles of LANES rows */

typedef struct {
    V *s, *g; /* (columns) scores, and Σ_c e·c */
    V score, top, sum, along, spread;
    double signature[4][LANES];
    int32_t own[LANES]; /* the distinct candidate, −1: none */
    uint8_t *owned;     /* (m) whether it is one of these */
} NAME(Tile);

/* σ of a candidate for all rows of a tile. */
INLINE void NAME(sigma)(const Job *job, const NAME(Tile) *tile, int64_t d, int64_t s, REAL along, V *out)
{
    const REAL *w = (const REAL *)job->weight + d * s;
    const int32_t *at = job->at + d * s;
    V total = w[0] * tile->s[at[0]];
    for (int64_t j = 1; j < s; j++) total += w[j] * tile->s[at[j]];
    if (along != 0) total += along * tile->spread;
    *out = total;
}

/* What `top` would be if it is not needed exactly: no candidate is above the highest class, or far below the lowest. */
INLINE int NAME(bound)(const Job *job, NAME(Tile) *tile)
{
    V high = tile->score, low = tile->score;
    high = (V)((I)high & (I)(high > 0));
    low = (V)((I)low & (I)(low < 0));
    for (int64_t u = 0; u < job->columns; u++) {
        V at = tile->s[u];
        I above = (I)(at > high), below = (I)(at < low);
        high = (V)(((I)at & above) | ((I)high & ~above));
        low = (V)(((I)at & below) | ((I)low & ~below));
    }
    tile->top = high;
    for (int l = 0; l < LANES; l++)
        if (!(high[l] - low[l] < 40)) return 0;
    return 1;
}

/* Zero for the lanes whose target is the candidate. */
INLINE void NAME(leave_hits)(const Call *call, const NAME(Tile) *tile, int64_t candidate, V *e)
{
    const double *theirs = call->other_signature + candidate * 4;
    for (int l = 0; l < LANES; l++) {
        double gap = 0;
        for (int p = 0; p < 4; p++) {
            double one = fabs(tile->signature[p][l] - theirs[p]);
            gap = one > gap ? one : gap;
        }
        (*e)[l] = gap < 5e-6 ? 0 : (*e)[l];
    }
}

/* Highest score of a candidate, then the sum of all and their classes. `s` is a constant where it is inlined. */
INLINE void NAME(candidates)(const Job *job, NAME(Tile) *tile, int64_t s)
{
    const Call *call = job->call;
    int has_along = !call->shares_background && NAME(is_full)(&call->candidate);
    V e = {0}, sum = {0};
    if (has_along || !NAME(bound)(job, tile)) {
        V top = tile->score;
        for (int64_t d = 0; d < job->m; d++) {
            NAME(sigma)(job, tile, d, s, has_along ? NAME(mass)(&call->candidate, job->original[d]) : 0, &e);
            I above = (I)(e > top);
            top = (V)(((I)e & above) | ((I)top & ~above));
        }
        tile->top = top;
    }
    V top = tile->top;
    for (int64_t d = 0; d < job->m; d++) {
        REAL along = has_along ? NAME(mass)(&call->candidate, job->original[d]) : 0;
        NAME(sigma)(job, tile, d, s, along, &e);
        e = NAME(exp)(e - top);
        if (tile->owned[d])
            for (int l = 0; l < LANES; l++) e[l] *= (REAL)(job->times[d] - (tile->own[l] == (int32_t)d));
        else
            e *= (REAL)job->times[d];
        if (call->signature) NAME(leave_hits)(call, tile, job->original[d], &e);
        sum += e;
        if (has_along) tile->along += along * e;
        const REAL *w = (const REAL *)job->weight + d * s;
        for (int64_t j = 0; call->gradient && j < s; j++) tile->g[job->at[d * s + j]] += w[j] * e;
    }
    tile->sum = sum;
}

INLINE REAL NAME(score_at)(const Call *call, const REAL *x, int64_t class)
{
    REAL s = NAME(at_least)(x[class], LOWEST) * (REAL)call->scale;
    return call->noise ? s - ((const REAL *)call->noise)[class] : s;
}

/* Σ_k ξ_k s_k of a row. */
INLINE REAL NAME(spread)(const Call *call, const Rows *rows, const REAL *x)
{
    const REAL *dist = rows->dist, *noise = call->noise;
    REAL total = 0, scale = (REAL)call->scale;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < call->k; j++) {
        REAL s = NAME(at_least)(x[j], LOWEST) * scale - (noise ? noise[j] : 0);
        total += dist ? dist[j] * s : s;
    }
    return dist ? total : total / (REAL)call->k;
}

/* Row i of a tile is done but for its gradient: writes that from the tile's sums. */
INLINE void NAME(write_tile)(const Job *job, int64_t i, int l, const NAME(Tile) *tile, REAL total, int alone, int along)
{
    const Call *call = job->call;
    const Rows *t = &call->target, *others = &call->candidate;
    const REAL *x = (const REAL *)call->x + i * call->stride, *ours = t->dist, *theirs = others->dist;
    REAL *g = (REAL *)call->gradient + i * call->k, rw = call->row_weight ? ((const REAL *)call->row_weight)[i] : 1;
    REAL f = (REAL)(rw * call->factor * call->scale) / total, less = f * tile->sum[l];
    int64_t k = call->k;
    if (alone || along) {
        REAL a = alone ? less * NAME(mass)(t, i) : 0, b = f * tile->along[l], flat = (REAL)(1.0 / (double)k);
        for (int64_t j = 0; j < k; j++) g[j] = b * (theirs ? theirs[j] : flat) - a * (ours ? ours[j] : flat);
    } else
        memset(g, 0, (size_t)k * sizeof *g);
    const REAL *sums = (const REAL *)tile->g + l;
    for (int64_t u = 0; u < job->columns; u++) g[job->column[u]] += f * sums[u * LANES];
    for (int64_t j = 0; j < t->s; j++) g[t->index[i * t->s + j]] -= less * NAME(pair)(t, i, j);
    if (call->of_temperature) NAME(temperature)(call, i, x, g);
}

static TARGET void NAME(tiles)(Job *job, char *scratch, int64_t start, int64_t stop)
{
    const Call *call = job->call;
    const Rows *t = &call->target;
    int alone = !call->shares_background && NAME(is_full)(t);
    int along = !call->shares_background && NAME(is_full)(&call->candidate);
    NAME(Tile) tile = {.s = (V *)scratch, .g = (V *)scratch + job->columns};
    REAL *s = (REAL *)scratch, score[LANES] = {0}, spread[LANES] = {0};
    tile.owned = (uint8_t *)(tile.g + job->columns);
    memset(scratch, 0, (size_t)(2 * job->columns) * sizeof(V) + (size_t)job->m);
    for (int l = 0; l < LANES; l++) tile.own[l] = -1;
    for (int64_t i = start; i < stop; i++) {
        const REAL *x = (const REAL *)call->x + i * call->stride;
        int l = (int)(i - start), bad = 0;
        if (call->mask && !call->mask[i]) continue;
        bad = NAME(is_bad)(t, i, call->k) ? BAD_TARGET : 0;
        if (!bad && call->place && (uint64_t)(call->place[i] + 1) > (uint64_t)call->m) bad = BAD_PLACE;
        if (bad) {
            fail(job, bad, i);
            return;
        }
        for (int64_t u = 0; u < job->columns; u++) s[u * LANES + l] = NAME(score_at)(call, x, job->column[u]);
        for (int64_t j = 0; j < t->s; j++)
            score[l] += NAME(pair)(t, i, j) * NAME(score_at)(call, x, t->index[i * t->s + j]);
        if (alone) score[l] += NAME(mass)(t, i) * NAME(spread)(call, t, x);
        if (along) spread[l] = NAME(spread)(call, &call->candidate, x);
        if (call->place && call->place[i] >= 0) tile.own[l] = job->place_of[call->place[i]];
        if (tile.own[l] >= 0) tile.owned[tile.own[l]] = 1;
        for (int p = 0; call->signature && p < 4; p++) tile.signature[p][l] = call->signature[i * 4 + p];
    }
    memcpy(&tile.score, score, sizeof score);
    memcpy(&tile.spread, spread, sizeof spread);
    if (call->candidate.s == 1) NAME(candidates)(job, &tile, 1);
    else if (call->candidate.s == 2) NAME(candidates)(job, &tile, 2);
    else NAME(candidates)(job, &tile, call->candidate.s);
    for (int64_t i = start; i < stop; i++) {
        int l = (int)(i - start);
        if (NAME(is_ignored)(call, i)) continue;
        REAL above = tile.top[l] - score[l], own = NAME(exp)((V){-above})[0], total = own + tile.sum[l];
        double loss = above < 60 ? log1p((double)tile.sum[l] / own) : above + log(total);
        REAL rw = call->row_weight ? ((const REAL *)call->row_weight)[i] : 1;
        ((REAL *)call->value)[i] = (REAL)(rw * loss);
        if (call->gradient) NAME(write_tile)(job, i, l, &tile, total, alone, along);
    }
}

/* ------------------------------------------------------------------------------------------- recognising dense rows */

static TARGET int64_t NAME(recognise)(const void *given, int64_t n, int64_t k, int64_t most, int64_t *index, void *weight,
                                      double *floor_of_all)
{
    const REAL *rows = given;
    REAL *weights = weight, lowest = LARGEST, highest_floor = -LARGEST, rounding = 4 * SPACING;
    int64_t fullest = 0;
    for (int64_t i = 0; i < n; i++) {
        const REAL *row = rows + i * k;
        REAL *w = weights + i * most, low = LARGEST;
        int64_t *at = index + i * most, found = 0;
#pragma omp simd reduction(min : low)
        for (int64_t j = 0; j < k; j++) low = row[j] < low ? row[j] : low;
        if (!(low >= 0)) return 0;
        REAL above = low * (1 + rounding);
        for (int64_t first = 0; first < k; first += 64) {
            int64_t stop = first + 64 < k ? first + 64 : k;
            INT any = 0;
#pragma omp simd reduction(+ : any)
            for (int64_t j = first; j < stop; j++) any += !(row[j] <= above);
            for (int64_t j = first; any && j < stop; j++) {
                if (row[j] <= above) continue;
                if (found == most || !(row[j] <= 2)) return 0;
                int64_t to = found++;
                for (; to && w[to - 1] < row[j]; to--) w[to] = w[to - 1], at[to] = at[to - 1];
                w[to] = row[j];
                at[to] = j;
            }
        }
        for (int64_t j = found; j < most; j++) w[j] = 0, at[j] = 0;
        fullest = found > fullest ? found : fullest;
        lowest = low < lowest ? low : lowest;
        highest_floor = low > highest_floor ? low : highest_floor;
    }
    if (highest_floor > lowest * (1 + rounding)) return 0;
    for (int64_t p = 0; p < n * most; p++) weights[p] = weights[p] > 0 ? weights[p] - lowest : 0;
    *floor_of_all = lowest;
    return fullest > 0 ? fullest : 1;
}

/* Adds rows (n, k) that count to total (k). */
static TARGET void NAME(class_mass)(const void *given, int64_t n, int64_t k, const uint8_t *mask, double *total)
{
    const REAL *rows = given;
    for (int64_t i = 0; i < n; i++) {
        if (mask && !mask[i]) continue;
        const REAL *row = rows + i * k;
        for (int64_t j = 0; j < k; j++) total[j] += row[j];
    }
}

#undef V
#undef I
#undef INT
#undef UINT
#undef MAGIC
#undef MANTISSA
#undef EXP_TERMS
#undef LOG_TERMS
#undef EXP_MIN
#undef EXP_MAX
#undef LOG
#undef TINY_SUM
#undef LN2_HIGH
#undef LN2_LOW
#undef LARGEST
#undef SPACING
#undef LOWEST
#undef INLINE
