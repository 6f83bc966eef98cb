printf 'abc\n' | bin/upper > out
printf 'ABC\n' | cmp - out
