/* Preloaded: the wall clock of a process is ahead of the machine's by as many nanoseconds as the first eight bytes of the
 * file TEST_CLOCK say. Monotonic time is left alone.
 *
 * A wait until a wall-clock time through C11's threads, as librdkafka's are, ends by that clock, also when it is set during
 * the wait, as Linux does it. Other waits are the machine's own: Rust's and the JVM's go by monotonic time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 10000000L
#define SECOND_NS 1000000000L
#define SLOTS 4096

typedef int clock_fn(clockid_t, struct timespec *);

static _Atomic int64_t agrees;
static _Atomic int64_t *ahead_ns = &agrees;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *seen = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead_ns, PROT_READ, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED)
        abort(); /* a test whose clock cannot be set shows nothing */
    ahead_ns = seen;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static _Atomic(clock_fn *) next;
    clock_fn *machine = atomic_load(&next);
    if (!machine)
        atomic_store(&next, machine = (clock_fn *)dlsym(RTLD_NEXT, "clock_gettime"));
    int told = machine(clock, at);
    if (told == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)at->tv_sec * SECOND_NS + at->tv_nsec + atomic_load(ahead_ns);
        at->tv_sec = ns / SECOND_NS;
        at->tv_nsec = ns % SECOND_NS;
    }
    return told;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int told = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return told;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* Counts what was signalled, so that nothing is missed between two slices. Conditions that share a slot wake in vain. */
static atomic_uint signals[SLOTS];

static atomic_uint *signals_of(cnd_t *cond) { return &signals[((uintptr_t)cond >> 4) % SLOTS]; }

int cnd_signal(cnd_t *cond) {
    atomic_fetch_add(signals_of(cond), 1);
    return pthread_cond_signal((pthread_cond_t *)cond) ? thrd_error : thrd_success;
}

int cnd_broadcast(cnd_t *cond) {
    atomic_fetch_add(signals_of(cond), 1);
    return pthread_cond_broadcast((pthread_cond_t *)cond) ? thrd_error : thrd_success;
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict until) {
    unsigned before = atomic_load(signals_of(cond));
    for (;;) {
        struct timespec now, slice;
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t left = (int64_t)(until->tv_sec - now.tv_sec) * SECOND_NS + until->tv_nsec - now.tv_nsec;
        if (left <= 0)
            return thrd_timedout;
        clock_gettime(CLOCK_MONOTONIC, &slice);
        slice.tv_nsec += left < SLICE_NS ? left : SLICE_NS;
        if (slice.tv_nsec >= SECOND_NS) {
            slice.tv_sec += 1;
            slice.tv_nsec -= SECOND_NS;
        }
        int told = pthread_cond_clockwait((pthread_cond_t *)cond, (pthread_mutex_t *)mutex, CLOCK_MONOTONIC, &slice);
        if (told != ETIMEDOUT)
            return told ? thrd_error : thrd_success;
        if (atomic_load(signals_of(cond)) != before)
            return thrd_success;
    }
}
