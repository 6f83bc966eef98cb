#!/bin/sh
# A coder that knows each bug. $1 holds, for each bug and attempt, the files as that attempt leaves them. It keeps its
# prompt, and notes where a later attempt is not led by what was demanded.
set -eu

stage=$1
prompt=$(mktemp)
cat > "$prompt"
name=$(sed -n 's/^Bug: //p' "$prompt")
cp "$prompt" "$stage/$name/prompt-$REFILE_ATTEMPT"
rm -f "$prompt"
if [ "$REFILE_ATTEMPT" -gt 1 ]; then
    sed -n 3p "$stage/$name/prompt-$REFILE_ATTEMPT" | grep -qxF "**Required change**: $(cat "$stage/$name/demand")" ||
        echo "$name, attempt $REFILE_ATTEMPT" >> "$stage/wrong"
fi
cp "$stage/$name/$REFILE_ATTEMPT/"* .
