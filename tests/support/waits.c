/* Preloaded before libfaketime, which knows nothing of C11's threads (0.9.10): a wait until a wall-clock time ends by the
 * faked clock, also when that is set during the wait, as Linux does it. librdkafka's waits are such.
 *
 * Without it a wait of 100 ms by a clock that is an hour behind returns at once, every time, and by one that is an hour
 * ahead takes an hour, every time. No machine whose clock was set does that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <threads.h>
#include <time.h>

#define SLICE_NS 10000000L
#define SECOND_NS 1000000000L
#define SLOTS 4096

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
        clock_gettime(CLOCK_REALTIME, &now); /* libfaketime's */
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
