//! The traps, one row each. Every part is a shell script; `$EVIL` is a command that leaves the canary.

/// Something in a repository that makes git run a command.
pub(crate) struct Trap {
    pub(crate) name: &'static str,
    /// Files that may lie in a repository: run in the origin before its commit, and in an agent's tree.
    pub(crate) files: &'static str,
    /// What only an agent can leave: in its tree's own `.git`, run in the tree.
    pub(crate) own: &'static str,
    /// Git without protection, run in the tree afterwards: it must walk into the trap.
    pub(crate) control: &'static str,
}

/// A setting in the tree's own repository.
macro_rules! setting {
    ($name:literal, $value:literal, $control:literal) => {
        Trap { name: $name, files: "", own: concat!("git config ", $name, " ", $value), control: $control }
    };
}

pub(crate) const TRAPS: &[Trap] = &[
    Trap {
        name: "hooks",
        files: "mkdir -p hooks .husky; for h in pre-commit post-checkout post-index-change reference-transaction pre-push \
                post-merge pre-receive update post-receive push-to-checkout; do printf '#!/bin/sh\\n%s\\n' \"$EVIL\" > hooks/$h; \
                chmod +x hooks/$h; done",
        own: "cp -r hooks .git/",
        control: "git commit -q --allow-empty -m x",
    },
    Trap {
        name: "core.hooksPath",
        files: "mkdir -p h2; printf '#!/bin/sh\\n%s\\n' \"$EVIL\" > h2/pre-commit; cp h2/pre-commit h2/reference-transaction; \
                cp h2/pre-commit h2/post-index-change; chmod +x h2/*",
        own: "git config core.hooksPath \"$PWD/h2\"",
        control: "git commit -q --allow-empty -m x",
    },
    setting!("core.fsmonitor", "\"$EVIL\"", "git status"),
    setting!("core.sshCommand", "\"$EVIL\"", "git fetch ssh://localhost/x"),
    setting!(
        "core.gitProxy",
        "\"$PWD/proxy.sh\"",
        "printf '#!/bin/sh\\n%s\\n' \"$EVIL\" > proxy.sh; chmod +x proxy.sh; git fetch git://localhost/x"
    ),
    setting!(
        "core.alternateRefsCommand",
        "\"$EVIL; true\"",
        "git init -q alt; echo x > alt/x; git -C alt add -A; git -C alt commit -q -m x; \
        echo \"$PWD/alt/.git/objects\" >> .git/objects/info/alternates; git fetch -q \"$PWD/alt\""
    ),
    setting!("core.editor", "\"$EVIL; true\"", "git commit --allow-empty"),
    setting!(
        "credential.helper",
        "\"!$EVIL;:\"",
        "printf 'protocol=https\\nhost=h\\n' | GIT_TERMINAL_PROMPT=0 git credential fill"
    ),
    setting!("diff.external", "\"$EVIL; true\"", "echo more >> a.txt; git diff"),
    setting!(
        "remote.origin.uploadpack",
        "\"$EVIL; git-upload-pack\"",
        "git remote add -f x . ; git config remote.origin.url .; git fetch origin"
    ),
    setting!(
        "gpg.program",
        "\"$PWD/gpg.sh\"",
        "printf '#!/bin/sh\\n%s\\n' \"$EVIL\" > gpg.sh; chmod +x gpg.sh; git commit -q -S --allow-empty -m x"
    ),
    setting!(
        "sequence.editor",
        "\"$EVIL; true\"",
        "git add -A; git commit -q -m x; git commit -q --allow-empty -m y; git rebase -i HEAD~1"
    ),
    setting!("alias.st", "\"!$EVIL\"", "git st"),
    Trap {
        name: "filter clean",
        files: "echo '* filter=evil' > .gitattributes",
        own: "git config filter.evil.clean \"$EVIL; cat\"",
        control: "echo more >> a.txt; git add -A",
    },
    Trap {
        name: "filter smudge",
        files: "echo '* filter=evil' > .gitattributes",
        own: "git config filter.evil.smudge \"$EVIL; cat\"; git config filter.evil.required true",
        control: "rm a.txt; git checkout -f HEAD a.txt",
    },
    Trap {
        name: "filter process",
        files: "echo '* filter=evil' > .gitattributes; echo x > processed.txt",
        own: "git config filter.evil.process \"$EVIL\"",
        control: "git add -A",
    },
    Trap {
        name: "textconv",
        files: "echo '* diff=evil' > .gitattributes",
        own: "git config diff.evil.textconv \"$EVIL; cat\"",
        control: "echo more >> a.txt; git diff",
    },
    Trap {
        name: "external diff by attribute",
        files: "echo '* diff=evil' > .gitattributes",
        own: "git config diff.evil.command \"$EVIL; true\"",
        control: "echo more >> a.txt; git diff",
    },
    Trap {
        name: "merge driver",
        files: "echo '* merge=evil' > .gitattributes",
        own: "git config merge.evil.driver \"$EVIL; true\"",
        control: "git add -A; git commit -q -m 0; git checkout -q -b one; echo 1 > b.txt; git commit -qam 1; \
                  git checkout -q -b two HEAD~1; echo 2 > b.txt; git commit -qam 2; git merge one",
    },
    Trap {
        name: ".gitmodules with an ext:: address",
        files: "printf '[submodule \"s\"]\\n\\tpath = s\\n\\turl = ext::sh -c %s\\n' \"'$EVIL'\" > .gitmodules",
        own: "true",
        control: "git -c protocol.ext.allow=always ls-remote \"ext::$PWD/ext.sh\" 2> /dev/null; printf '#!/bin/sh\\n%s\\n' \"$EVIL\" > ext.sh; \
                  chmod +x ext.sh; git -c protocol.ext.allow=always ls-remote \"ext::$PWD/ext.sh\"",
    },
    Trap {
        name: "submodule update command",
        files: "printf '[submodule \"s\"]\\n\\tpath = s\\n\\turl = ./s\\n\\tupdate = none\\n' > .gitmodules",
        own: "git init -q s; git -C s commit -q --allow-empty -m x; git config submodule.s.update \"!$EVIL;:\"; \
              git config submodule.s.url \"$PWD/s\"; git config submodule.s.active true",
        control: "git init -q s; git -C s commit -q --allow-empty -m x; git update-index --add --cacheinfo 160000,$(git -C s rev-parse HEAD),s; \
                  git -C s commit -q --allow-empty -m y; git submodule update",
    },
    Trap {
        name: "include.path",
        files: "printf '[core]\\n\\tfsmonitor = \"%s\"\\n' \"$EVIL\" > included",
        own: "git config include.path ../included",
        control: "git status",
    },
    Trap {
        name: "a .git file that leads elsewhere",
        files: "true",
        own: "mv .git moved; git --git-dir=moved config core.fsmonitor \"$EVIL\"; echo 'gitdir: moved' > .git",
        control: "git status",
    },
    Trap {
        name: "a .git link that leads elsewhere",
        files: "true",
        own: "mv .git moved; git --git-dir=moved config core.fsmonitor \"$EVIL\"; ln -s moved .git",
        control: "git status",
    },
    Trap {
        name: "a nested repository",
        files: "true",
        own: "git init -q vendor/lib; echo x > vendor/lib/x.txt; git -C vendor/lib add -A; git -C vendor/lib commit -q -m x; \
              git -C vendor/lib config core.fsmonitor \"$EVIL\"; cp -r vendor/lib/.git kept",
        control: "cp -r kept vendor/lib/.git; git add -A; git status; git -C vendor/lib status",
    },
    Trap {
        name: "a bare repository among the files",
        files: "git init -q --bare inner; git -C inner config core.bare false; git -C inner config core.worktree ..; \
                git -C inner config core.fsmonitor \"$EVIL\"; rm -rf inner/hooks; touch inner/refs/.k inner/objects/.k",
        own: "true",
        control: "git -C inner status",
    },
    Trap {
        name: "commondir and worktrees",
        files: "true",
        own: "cp -r .git common; git --git-dir=common config core.fsmonitor \"$EVIL\"; echo \"$PWD/common\" > .git/commondir",
        control: "git status",
    },
    Trap {
        name: "core.worktree",
        files: "true",
        own: "mkdir elsewhere; git config core.worktree \"$PWD/elsewhere\"; git config core.fsmonitor \"$EVIL\"",
        control: "git status",
    },
];
