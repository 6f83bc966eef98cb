# Runs every test under tests/, each in the same folder, and counts.
passed=0
failed=0
for test in tests/*.sh; do
    if sh -e "$test"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $test"
    fi
done
rm -f out
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
