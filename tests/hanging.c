/* Preloaded into a process, this makes every use of files below $HANG_BELOW hang once the file $HANG_IF exists, like
   a file system whose server is gone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void hang_if_below(const char *path) {
  const char *below = getenv("HANG_BELOW"), *trigger = getenv("HANG_IF");
  if (path && below && trigger && strncmp(path, below, strlen(below)) == 0 && access(trigger, F_OK) == 0)
    for (;;) pause();
}

static void hang_if_of(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0) {
    path[length] = 0;
    hang_if_below(path);
  }
}

/* Defines a function that checks the path, its first argument, and then calls the original function. */
#define GUARDED(type, name, second)                             \
  type name(const char *path, second other) {                   \
    hang_if_below(path);                                        \
    type (*original)(const char *, second) = dlsym(RTLD_NEXT, #name); \
    return original(path, other);                               \
  }
#define GUARDED_OPEN(name)                                      \
  int name(const char *path, int flags, ...) {                  \
    va_list list;                                               \
    va_start(list, flags);                                      \
    mode_t mode = va_arg(list, mode_t);                         \
    va_end(list);                                               \
    hang_if_below(path);                                        \
    int (*original)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
    return original(path, flags, mode);                         \
  }

GUARDED_OPEN(open)
GUARDED_OPEN(open64)
GUARDED(FILE *, fopen, const char *)
GUARDED(FILE *, fopen64, const char *)
GUARDED(int, statvfs, struct statvfs *)
GUARDED(int, statvfs64, struct statvfs64 *)

int fsync(int descriptor) {
  hang_if_of(descriptor);
  int (*original)(int) = dlsym(RTLD_NEXT, "fsync");
  return original(descriptor);
}
