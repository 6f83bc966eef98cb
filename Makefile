.PHONY: demo test lint fuzz e2e instructions bench bench-long

demo: ; cargo run --release -- demo
test: ; .ci/test
lint: ; .ci/lint
fuzz: ; .ci/fuzz
e2e: ; .ci/tools && cargo build --workspace && cargo test --package refile --test fleet -- --nocapture
instructions: ; .ci/tools && .ci/instructions
bench: ; cli/benches/run
bench-long: ; cli/benches/run --long
