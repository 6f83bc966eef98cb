#include <stdio.h>

#include "clamp.h"

static int failed;

static void expect(const char *what, int got, int wanted) {
    if (got != wanted) {
        printf("%s: %d and not %d\n", what, got, wanted);
        failed = 1;
    }
}

int main(void) {
    expect("within", clamp(5, 0, 10), 5);
    expect("below", clamp(-1, 0, 10), 0);
    expect("above", clamp(11, 0, 10), 10);
    return failed;
}
