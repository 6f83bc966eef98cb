.PHONY: demo test lint fuzz e2e land-200 instructions bench bench-long

demo: ; cargo run --release -- demo
test: ; .ci/test
lint: ; .ci/lint
fuzz: ; .ci/fuzz
e2e: ; .ci/tools && cargo test --workspace --test fleet -- --nocapture
land-200: ; .ci/tools && REFILE_TEST_LANDINGS=200 cargo test --workspace --test landings -- --nocapture --test-threads 1
instructions: ; .ci/tools && .ci/instructions
bench: ; cli/benches/run
bench-long: ; cli/benches/run --long
