// Preloaded into a server by a test, to set or shift its clock. Reads three numbers in microseconds from the file that the
// environment variable CLOCK names. If the first is above zero, it is the time at which the clock stands still. Otherwise,
// the second is added to the real time. The third is the time by which each
// look at the clock advances it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *set;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK"), O_RDONLY);
    set = mmap(0, 3 * sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || set == MAP_FAILED) abort();
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int answer = syscall(SYS_clock_gettime, clock, now);
    // Libraries may call this before the constructor has mapped the file.
    if (!set || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return answer;
    static long looked;
    looked = set[2] > 0 ? looked + set[2] : 0;
    long time = looked + (set[0] > 0 ? set[0] : now->tv_sec * 1000000L + now->tv_nsec / 1000 + set[1]);
    now->tv_sec = time / 1000000;
    now->tv_nsec = time % 1000000 * 1000;
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}
