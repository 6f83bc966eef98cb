#!/bin/sh
# A scripted agent for the demo. It is no model, but it works like one: it reads its prompt on standard input, changes
# files in the folder that it stands in, and does first what the prompt demands first.
set -eu

prompt=$(cat)
required=$(printf '%s\n' "$prompt" | sed -n 's/^\*\*Required change\*\*: //p' | head -n 1)
echo "required change: ${required:-none, this is the first attempt}"

# Writes a command from standard input.
command_file() {
    cat > "bin/$1"
    chmod +x "bin/$1"
}

# Writes a test: a name, what goes in, the command, and what must come out.
test_file() {
    cat > "tests/$1.sh" <<END
printf '$2' | bin/$3 > out
printf '$4' | cmp - out
END
}

# Waits for the other of the two tasks that conflict, so that both begin before either is done.
meet() {
    touch "$STAGE/$1"
    tries=0
    while [ ! -e "$STAGE/$2" ] && [ $tries -lt 15 ]; do
        tries=$((tries + 1))
        sleep 1
    done
}

# Adds a case to bin/greet, at the place where the other task adds one too.
greeting() {
    awk -v entry="    $1) echo \"$2\" ;;" '/^    \*\)/ { print entry } { print }' bin/greet > greet.new
    cat greet.new > bin/greet
    rm greet.new
    printf 'bin/greet %s > out\nprintf "%s\\\\n" | cmp - out\n' "$1" "$2" > "tests/greet-$1.sh"
}

case $prompt in
*"bin/reverse"*)
    command_file reverse <<'END'
#!/bin/sh
# Prints the last line first.
awk '{ line[NR] = $0 } END { for (i = NR; i > 0; i--) print line[i] }'
END
    test_file reverse 'a\nb\n' reverse 'b\na\n'
    ;;
*"bin/number"*)
    if [ -z "$required" ]; then
        echo "I have thought about it a lot."
        exit 0
    fi
    command_file number <<'END'
#!/bin/sh
# Prints each line with its number.
awk '{ print NR ": " $0 }'
END
    test_file number 'a\nb\n' number '1: a\n2: b\n'
    ;;
*"bin/trim"*)
    command_file trim <<'END'
#!/bin/sh
# Takes spaces off both ends of each line.
sed 's/^ *//; s/ *$//'
END
    if [ -z "$required" ]; then
        # Careless: white space at the end of a line.
        echo 'true   ' >> bin/trim
    fi
    test_file trim '  a  \n' trim 'a\n'
    ;;
*"bin/longest"*)
    command_file longest <<'END'
#!/bin/sh
# Prints the longest line.
awk 'length($0) > length(best) { best = $0 } END { if (NR) print best }'
END
    test_file longest 'a\nbbb\ncc\n' longest 'bbb\n'
    case $required in
    *"empty input"*) test_file longest-empty '' longest '' ;;
    esac
    ;;
*"bin/squeeze"*)
    command_file squeeze <<'END'
#!/bin/sh
# Makes one empty line of several.
awk 'NF { print; empty = 0; next } !empty { print; empty = 1 }'
END
    test_file squeeze 'a\n\n\nb\n' squeeze 'a\n\nb\n'
    ;;
*"morning"*)
    case $required in
    "Rebase onto"*) sed '/^<<<<<<< /d; /^=======$/d; /^>>>>>>> /d' bin/greet > greet.new && cat greet.new > bin/greet && rm greet.new ;;
    *) meet morning evening && greeting morning 'Good morning' ;;
    esac
    ;;
*"evening"*)
    case $required in
    "Rebase onto"*) sed '/^<<<<<<< /d; /^=======$/d; /^>>>>>>> /d' bin/greet > greet.new && cat greet.new > bin/greet && rm greet.new ;;
    *) meet evening morning && greeting evening 'Good evening' ;;
    esac
    ;;
*"README"*)
    printf '\nAttempt %s: %s\n' "$REFILE_ATTEMPT" "${required:-This is a wonderful program.}" >> README.md
    ;;
*)
    echo "REFILE: ask which of the sample's tasks is this?"
    ;;
esac
