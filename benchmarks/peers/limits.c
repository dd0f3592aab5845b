/* What the machine could do: two threads on two cores, without any library. Reads commands, one a line, and answers each
 * with a line of numbers:
 *   flag TRIPS                          nanoseconds of a flag's round trip (median)
 *   copy BYTES, add BYTES               GB/s of one thread; the bytes of one operand count (median of 5)
 *   ideal BYTES ITERATIONS WARMUP REWRITE
 *                                       nanoseconds of each all-reduce of floats, the slower thread's
 * The ideal all-reduce: both buffers are reachable by both threads; each thread adds one half and writes the result into both.
 * One flag before, one after. REWRITE: each thread writes its buffer anew before each, outside the measured time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef struct {
    _Alignas(128) atomic_long value;
} flag;

static flag flags[2];
static float *buffers[2], *sources[2];
static size_t capacity, elements;
static long iterations, warmup;
static int rewrite;
static int64_t *times[2];
static enum { FLAG, IDEAL } what;
static sem_t begin, done;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pin(int thread) {
    cpu_set_t usable, one;
    if (sched_getaffinity(0, sizeof usable, &usable)) return;
    int seen = 0;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &usable) && seen++ == thread) {
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
}

/* Meeting number `count` of the two threads. */
static void meet(int me, long count) {
    atomic_store_explicit(&flags[me].value, count, memory_order_release);
    while (atomic_load_explicit(&flags[1 - me].value, memory_order_acquire) < count) __builtin_ia32_pause();
}

static void *memory(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(at, bytes, MADV_HUGEPAGE);
    return at;
}

static void add_both(float *restrict a, float *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] = a[i] + b[i];
}

static void ideal(int me) {
    size_t half = elements / 2, from = me ? half : 0, n = me ? elements - half : half;
    long count = 0;
    for (size_t i = 0; i < elements; i++) buffers[me][i] = sources[me][i] = 0.5f;
    for (long i = -warmup; i < iterations; i++) {
        if (rewrite) memcpy(buffers[me], sources[me], elements * sizeof(float));
        if (rewrite || i == 0) meet(me, ++count);
        int64_t began = now();
        meet(me, ++count);
        add_both(buffers[0] + from, buffers[1] + from, n);
        meet(me, ++count);
        if (i >= 0) times[me][i] = now() - began;
    }
}

static void trips(int me) {
    for (long i = 0; i < iterations; i++) {
        int64_t began = now();
        if (me == 0) meet(0, i + 1);
        else {
            while (atomic_load_explicit(&flags[0].value, memory_order_acquire) < i + 1) __builtin_ia32_pause();
            atomic_store_explicit(&flags[1].value, i + 1, memory_order_release);
        }
        times[me][i] = now() - began;
    }
}

static void work(int me) {
    if (what == IDEAL) ideal(me);
    else trips(me);
}

static void *other(void *unused) {
    (void)unused;
    pin(1);
    for (;;) {
        sem_wait(&begin); /* uses no processor between commands */
        work(1);
        sem_post(&done);
    }
    return NULL;
}

static void both(long count) {
    iterations = count;
    for (int t = 0; t < 2; t++) {
        atomic_store(&flags[t].value, 0);
        times[t] = realloc(times[t], (size_t)count * sizeof **times);
    }
    sem_post(&begin);
    work(0);
    sem_wait(&done);
}

static void reserve(size_t bytes) {
    if (bytes <= capacity) return;
    for (int t = 0; t < 2; t++) {
        if (capacity) {
            munmap(buffers[t], capacity);
            munmap(sources[t], capacity);
        }
        buffers[t] = memory(bytes);
        sources[t] = memory(bytes);
    }
    capacity = bytes;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double rate(size_t bytes, int adds) {
    int64_t took[5];
    reserve(bytes);
    size_t n = bytes / sizeof(float);
    long rounds = bytes >= (8 << 20) ? 1 : (long)((8 << 20) / bytes);
    for (size_t i = 0; i < n; i++) buffers[0][i] = buffers[1][i] = sources[0][i] = 0.5f;
    for (int repeat = 0; repeat < 5; repeat++) {
        int64_t began = now();
        for (long r = 0; r < rounds; r++) {
            if (!adds) memcpy(buffers[0], buffers[1], bytes);
            else
                for (size_t i = 0; i < n; i++) buffers[0][i] = buffers[1][i] + sources[0][i];
            __asm__ volatile("" ::: "memory");
        }
        took[repeat] = now() - began;
    }
    qsort(took, 5, sizeof *took, ascending);
    return (double)bytes * (double)rounds / (double)took[2];
}

int main(void) {
    pthread_t thread;
    char line[256], word[16];
    sem_init(&begin, 0, 0);
    sem_init(&done, 0, 0);
    pthread_create(&thread, NULL, other, NULL); /* before this thread is pinned: it inherits the usable cores */
    pin(0);
    while (fgets(line, sizeof line, stdin)) {
        size_t bytes = 0;
        long count = 1;
        rewrite = 0, warmup = 0;
        if (sscanf(line, "ideal %zu %ld %ld %d", &bytes, &count, &warmup, &rewrite) == 4) {
            what = IDEAL;
            elements = bytes / sizeof(float);
            reserve(bytes);
            both(count);
            for (long i = 0; i < count; i++) printf("%lld ", (long long)(times[0][i] > times[1][i] ? times[0][i] : times[1][i]));
        } else if (sscanf(line, "flag %ld", &count) == 1) {
            what = FLAG;
            both(count);
            qsort(times[0], (size_t)count, sizeof **times, ascending);
            printf("%lld", (long long)times[0][count / 2]);
        } else if (sscanf(line, "%15s %zu", word, &bytes) == 2) {
            printf("%.3f", rate(bytes, !strcmp(word, "add")));
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
