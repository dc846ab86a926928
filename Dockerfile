# The binary without the commands `bench` and `demo`, in a small image that runs it as nobody in particular.
FROM rust:1.95.0-bookworm AS build
# The image's own toolchain, which is the one of rust-toolchain.toml.
ENV RUSTUP_TOOLCHAIN=1.95.0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ make perl \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# With jemalloc,tools it has `bench` and `demo`, too.
ARG FEATURES=jemalloc
# What it depends on is a layer of its own: librdkafka and OpenSSL are not built again when only the sources have changed.
COPY .cargo .cargo
COPY Cargo.toml Cargo.lock ./
COPY crates/client/Cargo.toml crates/client/
COPY crates/engine/Cargo.toml crates/engine/
COPY crates/fuzz-targets/Cargo.toml crates/fuzz-targets/
COPY crates/kafka/Cargo.toml crates/kafka/
COPY crates/proto/Cargo.toml crates/proto/
COPY crates/telemetry/Cargo.toml crates/telemetry/
COPY crates/terminal/Cargo.toml crates/terminal/
COPY crates/tools/Cargo.toml crates/tools/
RUN for crate in . crates/*; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done && echo 'fn main() {}' > src/main.rs \
    && cargo build --release --locked --package waterclock --no-default-features --features "$FEATURES" \
    && rm -r src crates/*/src
COPY topics topics
COPY crates crates
COPY src src
# Cargo goes by times, and these files may be older than the empty ones.
RUN touch src/main.rs src/lib.rs crates/*/src/lib.rs \
    && cargo build --release --locked --package waterclock --no-default-features --features "$FEATURES"

FROM debian:bookworm-slim
# The authorities that TLS is checked against where no ssl.ca.location is set.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
RUN install --directory --owner=65532 --group=65532 --mode=0750 /var/lib/waterclock
COPY --from=build /src/target/release/waterclock /usr/local/bin/waterclock
USER 65532:65532
# The API asks nobody who he is. To have others reach it, say WATERCLOCK_HTTP=0.0.0.0:8080 and WATERCLOCK_HTTP_UNAUTHENTICATED=true
# (docs/security.md).
ENV WATERCLOCK_DATA_DIR=/var/lib/waterclock \
    WATERCLOCK_HTTP=127.0.0.1:8080
VOLUME /var/lib/waterclock
EXPOSE 8080
# Whether a restart would help: one that waits for Kafka is well.
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s CMD ["waterclock", "health", "--live"]
ENTRYPOINT ["waterclock"]
CMD ["run"]
