// Preloaded into a server by a test, to set or shift its clock. Reads two numbers in microseconds from the file that the
// environment variable CLOCK names. If the first is above zero, it is the time at which the clock stands still. Otherwise,
// the second is added to the real time.
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
    set = mmap(0, 2 * sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || set == MAP_FAILED) abort();
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int answer = syscall(SYS_clock_gettime, clock, now);
    // Libraries may call this before the constructor has mapped the file.
    if (!set || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return answer;
    long time = set[0] > 0 ? set[0] : now->tv_sec * 1000000L + now->tv_nsec / 1000 + set[1];
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
