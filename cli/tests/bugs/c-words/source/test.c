#include <stdio.h>

#include "words.h"

static int failed;

static void expect(const char *what, int got, int wanted) {
    if (got != wanted) {
        printf("%s: %d and not %d\n", what, got, wanted);
        failed = 1;
    }
}

int main(void) {
    expect("two", words("a b"), 2);
    expect("none", words(""), 0);
    expect("far", words(" a   b "), 2);
    return failed;
}
