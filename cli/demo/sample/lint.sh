# Looks at every command: it must be a shell script that parses, with no white space at the end of a line.
status=0
for file in bin/*; do
    if ! sh -n "$file"; then
        status=1
    fi
    if grep -n '[[:space:]]$' "$file"; then
        echo "$file: white space at the end of the lines above"
        status=1
    fi
done
exit $status
