/* Preloaded: says of every function that is to run at a process's exit that it was registered. It registers one of its own,
   the way that a library does, so that the test knows that it is there and sees them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

typedef int register_fn(void (*)(void *), void *, void *);

int __cxa_atexit(void (*run)(void *), void *argument, void *library) {
    static const char said[] = "exit handler registered\n";
    if (write(STDERR_FILENO, said, sizeof said - 1) < 0)
        return -1;
    register_fn *next = (register_fn *)dlsym(RTLD_NEXT, "__cxa_atexit");
    return next(run, argument, library);
}

static void nothing(void) {}

__attribute__((constructor)) static void own(void) { atexit(nothing); }
