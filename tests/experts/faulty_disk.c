/* A drive with faults, for tests: loaded into a process by LD_PRELOAD.
 *
 * FAULTY_DISK names a file of the fields below, which is shared with the test: it changes what
 * happens while the process runs and sees how often it did. FAULTY_READS and FAULTY_WRITES are what
 * the path of a file must contain for its reads, and for its writes, syncs and renamings, to count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* In the order of FIELDS in tests/faulty_disk.py. */
struct disk {
    /* Every read of a byte from `bad_from` up to `bad_to` fails. */
    _Atomic int64_t bad_from, bad_to;
    /* The next `pass` reads go well, then `fail` ones fail. */
    _Atomic int64_t pass, fail;
    /* Each so-manieth read ends early, is interrupted by a signal, or fails; after a failure the
     * thread's next 8 reads do not, however many calls a second try takes. */
    _Atomic int64_t short_every, interrupt_every, fail_every;
    /* Milliseconds that each read takes longer. */
    _Atomic int64_t delay_ms;
    /* The next read takes so many milliseconds longer. */
    _Atomic int64_t hang_ms;
    /* Reads of a byte from `stuck_from` up to `stuck_to` do not come back as long as that says so. */
    _Atomic int64_t stuck_from, stuck_to;
    /* What is added to a byte of each read. */
    _Atomic int64_t corrupt;
    /* The error of writes, of syncs, of renamings; 0 for none. */
    _Atomic int64_t write_errno, sync_errno, rename_errno;
    /* As long as this says so, syncs do not come back. */
    _Atomic int64_t sync_stuck;
    /* Milliseconds that each sync takes longer. */
    _Atomic int64_t sync_ms;
    /* At the so-manieth opening, write, change of length, sync or renaming the process is killed. */
    _Atomic int64_t kill_at;
    /* What there was. */
    _Atomic int64_t reads, faults, changes;
    /* Reads that are stuck now. */
    _Atomic int64_t stuck;
};

static struct disk *disk;
static _Thread_local int calm;
static const char *reads, *writes;
static ssize_t (*real_pread)(int, void *, size_t, off64_t);
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_open)(const char *, int, ...);
static int (*real_fsync)(int);
static int (*real_ftruncate)(int, off64_t);
static int (*real_rename)(const char *, const char *);

__attribute__((constructor)) static void begin(void) {
    real_pread = dlsym(RTLD_NEXT, "pread64");
    real_write = dlsym(RTLD_NEXT, "write");
    real_open = dlsym(RTLD_NEXT, "open64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_rename = dlsym(RTLD_NEXT, "rename");
    reads = getenv("FAULTY_READS");
    writes = getenv("FAULTY_WRITES");
    int fd = real_open(getenv("FAULTY_DISK"), O_RDWR | O_CLOEXEC);
    void *memory = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || memory == MAP_FAILED) {
        perror("FAULTY_DISK");
        abort();
    }
    close(fd);
    disk = memory;
}

static int is_meant(int fd, const char *part) {
    char link[64], path[4096];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = part ? readlink(link, path, sizeof path - 1) : -1;
    errno = saved;
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

static void wait_ms(int64_t ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (ms > 0 && nanosleep(&left, &left) != 0)
        ;
}

/* Takes one of a number of times, if one is left. */
static int take(_Atomic int64_t *left) {
    int64_t n = atomic_load(left);
    while (n > 0)
        if (atomic_compare_exchange_weak(left, &n, n - 1))
            return 1;
    return 0;
}

static ssize_t fault(int error) {
    atomic_fetch_add(&disk->faults, 1);
    errno = error;
    return -1;
}

static int each(int64_t nth, int64_t n) {
    return n > 0 && nth % n == 0;
}

static int touches(int64_t from, size_t bytes, int64_t first, int64_t end) {
    return from < end && from + (int64_t)bytes > first;
}

ssize_t pread64(int fd, void *out, size_t bytes, off64_t from) {
    if (!is_meant(fd, reads))
        return real_pread(fd, out, bytes, from);
    int64_t nth = atomic_fetch_add(&disk->reads, 1) + 1;
    wait_ms(disk->delay_ms);
    wait_ms(atomic_exchange(&disk->hang_ms, 0));
    if (touches(from, bytes, disk->stuck_from, disk->stuck_to)) {
        atomic_fetch_add(&disk->stuck, 1);
        while (touches(from, bytes, disk->stuck_from, disk->stuck_to))
            wait_ms(5);
        atomic_fetch_sub(&disk->stuck, 1);
    }
    if (touches(from, bytes, disk->bad_from, disk->bad_to))
        return fault(EIO);
    if (!take(&disk->pass) && take(&disk->fail))
        return fault(EIO);
    if (calm > 0)
        calm--;
    else if (each(nth, disk->fail_every)) {
        calm = 8;
        return fault(EIO);
    }
    if (each(nth, disk->interrupt_every))
        return fault(EINTR);
    if (bytes > 1 && each(nth, disk->short_every)) {
        atomic_fetch_add(&disk->faults, 1);
        bytes = (bytes + 1) / 2;
    }
    ssize_t n = real_pread(fd, out, bytes, from);
    if (n > 0 && disk->corrupt != 0) {
        atomic_fetch_add(&disk->faults, 1);
        ((unsigned char *)out)[n / 2] += disk->corrupt;
    }
    return n;
}

ssize_t pread(int fd, void *out, size_t bytes, off_t from) {
    return pread64(fd, out, bytes, from);
}

static void change(void) {
    if (atomic_fetch_add(&disk->changes, 1) + 1 == disk->kill_at)
        kill(getpid(), SIGKILL);
}

ssize_t write(int fd, const void *bytes, size_t n) {
    if (!disk || !is_meant(fd, writes))
        return real_write(fd, bytes, n);
    change();
    if (disk->write_errno != 0) {
        /* A full disk takes what still fits. */
        if (disk->write_errno == ENOSPC && n > 1 && atomic_fetch_add(&disk->faults, 1) == 0)
            return real_write(fd, bytes, n / 2);
        return fault(disk->write_errno);
    }
    return real_write(fd, bytes, n);
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (disk && writes && (flags & O_CREAT) && strstr(path, writes))
        change();
    return real_open(path, flags, mode);
}

int fsync(int fd) {
    if (!is_meant(fd, writes))
        return real_fsync(fd);
    change();
    while (disk->sync_stuck)
        wait_ms(5);
    wait_ms(disk->sync_ms);
    return disk->sync_errno != 0 ? fault(disk->sync_errno) : real_fsync(fd);
}

int ftruncate64(int fd, off64_t length) {
    if (is_meant(fd, writes))
        change();
    return real_ftruncate(fd, length);
}

int rename(const char *from, const char *to) {
    if (!writes || !strstr(to, writes))
        return real_rename(from, to);
    change();
    return disk->rename_errno != 0 ? fault(disk->rename_errno) : real_rename(from, to);
}
