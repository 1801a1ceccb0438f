/* The wall clock of a process and its children, moved by the nanoseconds that a file holds (an int64), at once and as often as
   one likes. The monotonic clock is untouched. cc -shared -fPIC; LD_PRELOAD; WALL_CLOCK_FILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL

static const volatile int64_t *step_ns;

__attribute__((constructor)) static void find(void) {
  static const int64_t none = 0;
  const char *file = getenv("WALL_CLOCK_FILE");
  int opened = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
  void *found = opened < 0 ? MAP_FAILED : mmap(0, sizeof none, PROT_READ, MAP_SHARED, opened, 0);
  step_ns = found == MAP_FAILED ? &none : found;
  if (opened >= 0) close(opened);
}

static struct timespec moved(const struct timespec *at, int64_t ns) {
  int64_t total = at->tv_sec * BILLION + at->tv_nsec + ns;
  struct timespec result = {total / BILLION, total % BILLION};
  return result;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (syscall(SYS_clock_gettime, clock, now)) return -1;
  if (step_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *now = moved(now, *step_ns);
  return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec at;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &at);
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (now) *now = at.tv_sec;
  return at.tv_sec;
}

/* The kernel waits by the true clock. A deadline of the monotonic clock counts from the machine's start: decades before. */
static struct timespec deadline(const struct timespec *at) {
  return at->tv_sec > BILLION / 2 && step_ns ? moved(at, -*step_ns) : *at;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  struct timespec then = deadline(until);
  return real(condition, mutex, &then);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  struct timespec then = deadline(until);
  return real(condition, mutex, clock, &then);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  static int (*real)(sem_t *, const struct timespec *);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec then = deadline(until);
  return real(semaphore, &then);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
  static int (*real)(pthread_mutex_t *, const struct timespec *);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
  struct timespec then = deadline(until);
  return real(mutex, &then);
}
