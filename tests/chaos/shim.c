/* Loaded before libc into a process of the campaign (LD_PRELOAD), it makes a
   disk that loses power. FORAGE_CHAOS_DISK names a folder, FORAGE_CHAOS_SYNCED another. Of each
   file in the former the latter has a copy with what was synced: fsync and fdatasync bring the
   ranges up that were written since the last, and all else of the file stays as it was. After a
   kill -9, the copies are what a loss of power would have left. Creating, renaming and deleting
   are durable at once.

   Writes of stdio do not pass through here: of a file that was not opened here, a sync copies all.
*/

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define RANGES 4096

struct file { /* of the folder; shared by its descriptors, as a sync is */
    dev_t device;
    ino_t inode;
    int whole; /* not all that was written since the last sync is in the ranges */
    int count;
    off_t ranges[RANGES][2];
    struct file *next;
};

static struct file *known;
static struct file *files[DESCRIPTORS]; /* by descriptor; NULL: not in the folder */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *disk, *synced;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("FORAGE_CHAOS_DISK"), *copies = getenv("FORAGE_CHAOS_SYNCED");
    disk = folder && copies ? strdup(folder) : NULL; /* Redis writes its title over these */
    synced = copies ? strdup(copies) : NULL;
}

static int inside(const char *path) {
    size_t length = disk ? strlen(disk) : 0;
    return length && !strncmp(path, disk, length) && path[length] == '/';
}

static int path_of(int fd, char *path) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return inside(path);
}

static void copy_path(const char *path, char *copy) { /* of the synced copy */
    size_t at = snprintf(copy, PATH_MAX, "%s/", synced);
    for (const char *each = path + strlen(disk) + 1; *each && at < PATH_MAX - 1; each++)
        copy[at++] = *each == '/' ? '%' : *each;
    copy[at] = 0;
}

static struct file *file_of(const struct stat *found) { /* under the lock */
    struct file *file;
    for (file = known; file; file = file->next)
        if (file->device == found->st_dev && file->inode == found->st_ino) return file;
    file = calloc(1, sizeof *file);
    file->device = found->st_dev;
    file->inode = found->st_ino;
    file->whole = 1; /* another process may have written it */
    file->next = known;
    return known = file;
}

static int opened(int fd) {
    if (fd < 0 || fd >= DESCRIPTORS || !disk) return fd;
    int error = errno;
    char path[PATH_MAX];
    struct stat found;
    pthread_mutex_lock(&lock);
    files[fd] = path_of(fd, path) && !fstat(fd, &found) && S_ISREG(found.st_mode)
        ? file_of(&found) : NULL;
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

static int watched(int fd) { return fd >= 0 && fd < DESCRIPTORS && files[fd]; }

static void written(int fd, off_t from, ssize_t bytes) {
    if (bytes <= 0 || !watched(fd)) return;
    pthread_mutex_lock(&lock);
    struct file *file = files[fd];
    int last = file->count - 1;
    if (last >= 0 && file->ranges[last][1] == from)
        file->ranges[last][1] = from + bytes;
    else if (file->count < RANGES) {
        file->ranges[file->count][0] = from;
        file->ranges[file->count++][1] = from + bytes;
    } else
        file->whole = 1;
    pthread_mutex_unlock(&lock);
}

static int plain(const char *path, int flags, ...) { /* open64, and nothing else */
    static int (*real)(const char *, int, ...);
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return real(path, flags, 0600);
}

static void copy_range(int in, int out, off_t from, off_t to) {
    char part[65536];
    while (from < to) {
        size_t wanted = to - from < (off_t)sizeof part ? (size_t)(to - from) : sizeof part;
        ssize_t count = pread(in, part, wanted, from);
        if (count <= 0) return;
        if (pwrite(out, part, count, from) != count) abort();
        from += count;
    }
}

static void sync_copy(int fd) {
    int error = errno;
    char path[PATH_MAX], copy[PATH_MAX], name[64];
    static off_t ranges[RANGES][2];
    static pthread_mutex_t copying = PTHREAD_MUTEX_INITIALIZER;
    struct stat now, had;
    if (!disk || !path_of(fd, path) || fstat(fd, &now) || !S_ISREG(now.st_mode)) return;
    pthread_mutex_lock(&copying);
    pthread_mutex_lock(&lock);
    struct file *file = file_of(&now);
    int whole = file->whole || !watched(fd), count = file->count;
    memcpy(ranges, file->ranges, count * sizeof *ranges);
    file->count = file->whole = 0;
    pthread_mutex_unlock(&lock);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    copy_path(path, copy);
    int in = plain(name, O_RDONLY | O_CLOEXEC);
    int out = plain(copy, O_WRONLY | O_CREAT | O_CLOEXEC);
    if (in >= 0 && out >= 0 && !fstat(out, &had)) {
        if (whole)
            copy_range(in, out, 0, now.st_size);
        for (int i = 0; !whole && i < count; i++)
            copy_range(in, out, ranges[i][0], ranges[i][1]);
        if (ftruncate(out, now.st_size)) abort();
    }
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    pthread_mutex_unlock(&copying);
    errno = error;
}

int fsync(int fd) { sync_copy(fd); return 0; } /* the real one takes its time, and proves nothing */
int fdatasync(int fd) { sync_copy(fd); return 0; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        return opened(real(path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        return opened(real(at, path, flags, mode)); \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < DESCRIPTORS) files[fd] = NULL;
    return real(fd);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(write);
    ssize_t done = real(fd, bytes, count);
    if (done > 0 && watched(fd)) /* O_APPEND moves there, too */
        written(fd, lseek(fd, 0, SEEK_CUR) - done, done);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    ssize_t done = real(fd, parts, count);
    if (done > 0 && watched(fd))
        written(fd, lseek(fd, 0, SEEK_CUR) - done, done);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t from) {
    REAL(pwrite);
    ssize_t done = real(fd, bytes, count, from);
    written(fd, from, done);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t from) {
    REAL(pwrite64);
    ssize_t done = real(fd, bytes, count, from);
    written(fd, from, done);
    return done;
}

static int copied(const char *path, char *copy) { /* whether there may be a copy; its path */
    char whole[PATH_MAX];
    size_t at = 0;
    if (!disk) return 0;
    if (path[0] != '/') { /* Redis changes to its folder */
        if (!getcwd(whole, PATH_MAX - 1)) return 0;
        at = strlen(whole);
        whole[at++] = '/';
    }
    snprintf(whole + at, PATH_MAX - at, "%s", path);
    if (inside(whole)) copy_path(whole, copy);
    return inside(whole);
}

int unlink(const char *path) {
    REAL(unlink);
    char copy[PATH_MAX];
    int failed = real(path), error = errno;
    if (!failed && copied(path, copy)) real(copy);
    errno = error;
    return failed;
}

int rename(const char *from, const char *to) {
    REAL(rename);
    char old[PATH_MAX], new[PATH_MAX];
    int failed = real(from, to), error = errno;
    if (!failed && copied(from, old) && copied(to, new) && real(old, new))
        unlink(new); /* nothing of it was synced */
    errno = error;
    return failed;
}
