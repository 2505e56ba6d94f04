/* Random calls of cpu.c on memory of exactly the size it may touch; built with -fsanitize=address,undefined. */
#include "../../src/softnce/_core/cpu.c"
#include <stdio.h>

static uint64_t state = 1;
static int64_t below(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % n;
}

static void *numbers(int64_t bits, int64_t n)
{
    void *made = malloc((size_t)(n * bits / 8));
    for (int64_t i = 0; i < n; i++) {
        double value = (double)below(1000) / 1000;
        if (bits == 64) ((double *)made)[i] = value;
        else ((float *)made)[i] = (float)value;
    }
    return made;
}

static int64_t *classes(int64_t n, int64_t k)
{
    int64_t *made = malloc(8 * (size_t)n);
    for (int64_t i = 0; i < n; i++) made[i] = below(k);
    return made;
}

static Rows rows(int64_t bits, int64_t n, int64_t k, int may_be_dense)
{
    Rows made = {0};
    int64_t form = below(may_be_dense ? 3 : 2);
    if (form < 2) {
        made.s = form ? 1 + below(3) : 1;
        made.index = classes(n * made.s, k);
    }
    if (form) made.weight = numbers(bits, n * (form == 1 ? made.s : k));
    if (below(3) == 0) made.masses = numbers(bits, n);
    else if (below(2)) made.mass = 0.1;
    if (below(3) == 0) made.dist = numbers(bits, k);
    return made;
}

static void release(Rows r)
{
    free((void *)r.index);
    free((void *)r.weight);
    free((void *)r.masses);
    free((void *)r.dist);
}

int main(void)
{
    for (int round = 0; round < 3000; round++) {
        int64_t bits = below(2) ? 32 : 64, n = 1 + below(40), k = 1 + below(round % 100 ? 70 : 3000);
        Call c = {.kind = below(3), .bits = bits, .n = n, .k = k, .stride = k, .threads = 3, .scale = 1.5, .factor = 0.5};
        c.x = numbers(bits, n * k);
        double spread = below(3) ? 1 : -1e4; /* also logits whose exponential is 0 */
        for (int64_t i = 0; i < n * k; i++)
            if (bits == 64) ((double *)c.x)[i] *= spread;
            else ((float *)c.x)[i] *= (float)spread;
        c.gradient = below(4) ? numbers(bits, n * k) : NULL;
        c.value = numbers(bits, n);
        c.of_temperature = c.gradient && below(2) ? numbers(bits, n) : NULL;
        c.total = below(2) ? numbers(bits, 1) : NULL;
        c.noise = below(2) ? numbers(bits, k) : NULL;
        c.row_weight = below(2) ? numbers(bits, n) : NULL;
        uint8_t *mask = malloc((size_t)n);
        for (int64_t i = 0; i < n; i++) mask[i] = below(4) > 0;
        c.mask = below(2) ? mask : NULL;
        c.target = rows(bits, n, k, c.kind != SOFT_TARGET);
        if (c.kind != SOFT_TARGET) c.counts = numbers(64, k);
        if (c.kind == COUNTED) c.class_weight = below(2) ? numbers(bits, k) : NULL, c.flags = below(2);
        if (c.kind == EXPECTED) {
            c.flags = below(2) ? below(2) * DROPS_OWN : HAS_OWN;
            if (c.flags == HAS_OWN) c.own = rows(bits, n, k, 1);
            if (below(2)) c.e = 2, c.exclude = classes(2 * n, k);
        }
        if (c.kind == SOFT_TARGET) {
            c.m = 1 + below(300);
            c.candidate = rows(bits, c.m, k, 0);
            if (below(2)) c.place = classes(n, c.m);
            if (below(3) == 0) c.signature = numbers(64, 4 * n), c.other_signature = numbers(64, 4 * c.m);
        }
        if (below(20) == 0 && c.target.index) ((int64_t *)c.target.index)[below(n * c.target.s)] = below(2) ? k : -100;
        softnce_rows(&c);
        void *all[] = {(void *)c.x, c.gradient, c.value, c.of_temperature, c.total, (void *)c.noise, (void *)c.row_weight,
            mask, (void *)c.counts, (void *)c.class_weight, (void *)c.exclude, (void *)c.place, (void *)c.signature,
            (void *)c.other_signature};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        release(c.target);
        release(c.own);
        release(c.candidate);
        void *dense = numbers(bits, n * k), *weight = numbers(bits, 2 * n);
        int64_t *index = classes(2 * n, k);
        double floor;
        softnce_recognise(dense, bits, n, k, 2, index, weight, &floor);
        free(dense), free(weight), free(index);
    }
    puts("clean");
    return 0;
}
