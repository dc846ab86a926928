//! Tests against a real Kafka. `scripts/test` starts one; `KAFKA_BOOTSTRAP` says where it is.

mod topics;
