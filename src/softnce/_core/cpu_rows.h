/* The rows of one floating point type and instruction set; cpu.c includes this file with REAL, SUFFIX and TARGET.
 * Loops run over rows padded to LANES, so that none has a remainder where it is dear. */
#ifdef IS_DOUBLE
#define INT int64_t
#define MAGIC 6755399441055744.0 /* 1.5·2^52: adding it rounds to a whole number */
#define MANTISSA 52
#define EXP_TERMS 13
#define LOG_TERMS 16
#define EXP_MIN -708.0
#define LN2_HIGH 0.693147180369123816490
#define LN2_LOW 1.90821492927058770002e-10
#define LARGEST DBL_MAX
#define EXP_MAX 600.0
#else
#define INT int32_t
#define MAGIC 12582912.0f
#define MANTISSA 23
#define EXP_TERMS 7
#define LOG_TERMS 7
#define EXP_MIN -87.0f
#define LN2_HIGH 0.693145751953125f
#define LN2_LOW 1.428606765330187e-6f
#define LARGEST FLT_MAX
#define EXP_MAX 80.0f
#endif
#define LOWEST ((REAL)(-LARGEST / 268435456.0)) /* stands for a logit of -inf, as in contrast.py */
#define INLINE static inline __attribute__((always_inline, unused)) TARGET

static const REAL NAME(exp_terms)[] = {1, 1, (REAL)(1 / 2.), (REAL)(1 / 6.), (REAL)(1 / 24.), (REAL)(1 / 120.),
    (REAL)(1 / 720.), (REAL)(1 / 5040.), (REAL)(1 / 40320.), (REAL)(1 / 362880.), (REAL)(1 / 3628800.),
    (REAL)(1 / 39916800.), (REAL)(1 / 479001600.), (REAL)(1 / 6227020800.)};

/* e^x for x ≤ EXP_MAX, within 2 ulp; 0 below EXP_MIN. */
INLINE REAL NAME(exp)(REAL x)
{
    const REAL *c = NAME(exp_terms);
    REAL shifted = x * (REAL)1.4426950408889634 + MAGIC, whole = shifted - MAGIC;
    REAL r = x - whole * LN2_HIGH - whole * LN2_LOW, p = c[EXP_TERMS];
    for (int i = EXP_TERMS - 1; i >= 0; i--) p = p * r + c[i];
    INT bits, of_p;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&of_p, &p, sizeof of_p);
#ifdef IS_DOUBLE
    of_p = (INT)((uint64_t)of_p + ((uint64_t)bits << MANTISSA));
#else
    of_p = (INT)((uint32_t)of_p + ((uint32_t)bits << MANTISSA));
#endif
    memcpy(&p, &of_p, sizeof p);
    return x < EXP_MIN ? 0 : p;
}

/* log(1 + low/high) for 0 ≤ low ≤ high, within 2 ulp: twice the area tangent of low/(2·high + low) ≤ 1/3. */
INLINE REAL NAME(log1p_ratio)(REAL low, REAL high)
{
    static const REAL c[] = {2, (REAL)(2 / 3.), (REAL)(2 / 5.), (REAL)(2 / 7.), (REAL)(2 / 9.), (REAL)(2 / 11.),
        (REAL)(2 / 13.), (REAL)(2 / 15.), (REAL)(2 / 17.), (REAL)(2 / 19.), (REAL)(2 / 21.), (REAL)(2 / 23.),
        (REAL)(2 / 25.), (REAL)(2 / 27.), (REAL)(2 / 29.), (REAL)(2 / 31.), (REAL)(2 / 33.)};
    REAL y = low / (high + high + low), square = y * y, p = c[LOG_TERMS];
    for (int i = LOG_TERMS - 1; i >= 0; i--) p = p * square + c[i];
    return y * p;
}

INLINE REAL NAME(at_least)(REAL x, REAL low) { return x < low ? low : x; }
INLINE REAL NAME(at_most)(REAL x, REAL high) { return x > high ? high : x; }

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

/* One row of `counted` or `expected`; s, c, u, a and sums are scratch, c its counts. */
INLINE void NAME(row)(
    Job *job, int64_t i, REAL *restrict s, REAL *restrict c, REAL *restrict u, REAL *restrict a, double *sums)
{
    const Call *call = job->call;
    const Rows *t = &call->target;
    const REAL *x = (const REAL *)call->x + i * call->stride, *noise = call->noise, *cw = call->class_weight;
    REAL *g = call->gradient ? (REAL *)call->gradient + i * call->k : NULL, *value = (REAL *)call->value + i;
    int64_t k = call->k, padded = (k + LANES - 1) / LANES * LANES;
    int full = NAME(is_full)(t), is_expected = call->kind == EXPECTED, needs_each = full && is_expected;
    REAL scale = (REAL)call->scale, rw = call->row_weight ? ((const REAL *)call->row_weight)[i] : 1;
    REAL f = (REAL)(rw * call->factor * call->scale), top = -LARGEST, sum = 0, loss = 0, pulled = 0, mass = 0;
    if (full) NAME(fill)(t, i, k, a);
    NAME(change_counts)(job, i, a, c, sums, 0);
    if (noise)
        for (int64_t j = 0; j < k; j++) s[j] = NAME(at_least)(x[j], LOWEST) * scale - noise[j];
    else
        for (int64_t j = 0; j < k; j++) s[j] = NAME(at_least)(x[j], LOWEST) * scale;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < padded; j++) {
        REAL there = c[j] > 0 ? s[j] : -LARGEST;
        top = there > top ? there : top;
    }
    if (top == -LARGEST) { /* nothing to contrast with */
        *value = 0;
        if (g) memset(g, 0, (size_t)k * sizeof *g);
        if (call->of_temperature) ((REAL *)call->of_temperature)[i] = 0;
        return;
    }
    if (needs_each) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < padded; j++) {
            REAL e = NAME(exp)(NAME(at_most)(s[j] - top, EXP_MAX));
            u[j] = e;
            sum += c[j] * e;
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < padded; j++) {
            REAL e = c[j] * NAME(exp)(NAME(at_most)(s[j] - top, EXP_MAX));
            u[j] = e;
            sum += e;
        }
    }
    REAL rest = (REAL)log(sum), *pull = NULL;
    if (full && cw && !is_expected)
        for (int64_t j = 0; j < k; j++) a[j] *= cw[j];
    if (needs_each) {
#pragma omp simd reduction(+ : loss, pulled)
        for (int64_t j = 0; j < padded; j++) {
            REAL gap = rest - (s[j] - top), e = u[j], high = e > sum ? e : sum, low = e > sum ? sum : e;
            REAL part = a[j] * (sum / (sum + e));
            loss += a[j] * ((gap > 0 ? gap : 0) + NAME(log1p_ratio)(low, high));
            pulled += part;
            s[j] = part;
            u[j] = c[j] * e;
        }
        pull = s;
    } else if (full) {
#pragma omp simd reduction(+ : loss, mass)
        for (int64_t j = 0; j < padded; j++) {
            loss -= a[j] * (s[j] - top);
            mass += a[j];
        }
        loss += mass * rest;
        pulled = mass;
        pull = a;
    } else
        for (int64_t j = 0; j < t->s; j++) {
            int64_t class = t->index[i * t->s + j];
            REAL w = NAME(pair)(t, i, j), gap = rest - (s[class] - top);
            if (is_expected) {
                REAL e = NAME(exp)(gap > 0 ? -gap : gap);
                loss += w * ((gap > 0 ? gap : 0) + NAME(log1p_ratio)(e, 1));
                pulled += w * (gap > 0 ? 1 : e) / (1 + e);
            } else {
                w = cw ? w * cw[class] : w;
                loss += w * gap;
                pulled += w;
            }
        }
    *value = rw * loss;
    if (!g) return;
    REAL push = f * pulled / sum;
    if (pull)
        for (int64_t j = 0; j < k; j++) g[j] = push * u[j] - f * pull[j];
    else
        for (int64_t j = 0; j < k; j++) g[j] = push * u[j];
    for (int64_t j = 0; !full && j < t->s; j++) {
        int64_t class = t->index[i * t->s + j];
        REAL w = NAME(pair)(t, i, j), gap = rest - (s[class] - top);
        if (is_expected) {
            REAL e = NAME(exp)(gap > 0 ? -gap : gap);
            w *= (gap > 0 ? 1 : e) / (1 + e);
        } else if (cw)
            w *= cw[class];
        g[class] -= f * w;
    }
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
    REAL *s = (REAL *)scratch, *c = s + padded, *u = c + padded, *a = u + padded;
    double *sums = (double *)(a + padded);
    for (int64_t j = 0; j < k; j++) c[j] = job->counts[j] > 0 ? (REAL)job->counts[j] : 0;
    for (int64_t j = k; j < padded; j++) s[j] = c[j] = a[j] = 0;
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
        for (int64_t j = k; j < padded; j++) s[j] = a[j] = 0;
        NAME(row)(job, i, s, c, u, a, sums);
        NAME(change_counts)(job, i, a, c, sums, 1);
    }
}

/* -------------------------------------------------------------------------------- soft target: tiles of LANES rows */

/* One number of each row of a tile; the compiler splits them where registers are shorter. */
typedef REAL NAME(V) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef INT NAME(I) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define V NAME(V)
#define I NAME(I)

typedef struct {
    V *s, *g; /* (columns) scores, and Σ_c e·c */
    V score, top, sum, along, spread;
    double signature[4][LANES];
    int32_t own[LANES]; /* the distinct candidate, −1: none */
    uint8_t *owned;     /* (m) whether it is one of these */
} NAME(Tile);

/* As `exp`. */
INLINE void NAME(exp_tile)(V *at)
{
    V x = *at, shifted = x * (REAL)1.4426950408889634 + MAGIC, whole = shifted - MAGIC;
    V r = x - whole * LN2_HIGH - whole * LN2_LOW, p = r * NAME(exp_terms)[EXP_TERMS] + NAME(exp_terms)[EXP_TERMS - 1];
    for (int i = EXP_TERMS - 2; i >= 0; i--) p = p * r + NAME(exp_terms)[i];
    *at = (V)(((I)p + ((I)shifted << MANTISSA)) & ~(I)(x < EXP_MIN));
}

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
        e -= top;
        NAME(exp_tile)(&e);
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
        REAL above = tile.top[l] - score[l], own = NAME(exp)(-above), total = own + tile.sum[l];
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
    REAL *weights = weight, lowest = LARGEST, highest_floor = -LARGEST, rounding = (REAL)(sizeof(REAL) == 8 ? 4 * DBL_EPSILON : 4 * FLT_EPSILON);
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
#undef MAGIC
#undef MANTISSA
#undef EXP_TERMS
#undef LOG_TERMS
#undef EXP_MIN
#undef EXP_MAX
#undef LN2_HIGH
#undef LN2_LOW
#undef LARGEST
#undef LOWEST
#undef INLINE
