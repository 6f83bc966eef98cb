.PHONY: demo test lint e2e instructions

demo: ; cargo run --release -- demo
test: ; .ci/test
lint: ; .ci/lint
e2e: ; .ci/tools && cargo build --workspace && cargo test --package refile --test fleet -- --nocapture
instructions: ; .ci/tools && .ci/instructions
