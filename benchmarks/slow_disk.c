/* A disk that needs two milliseconds more for every flush. Preloaded into a Postgres of its own. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int later(int result)
{
    struct timespec rest = {0, 2000000};
    nanosleep(&rest, 0);
    return result;
}

int fsync(int fd) { return later((int)syscall(SYS_fsync, fd)); }

int fdatasync(int fd) { return later((int)syscall(SYS_fdatasync, fd)); }
