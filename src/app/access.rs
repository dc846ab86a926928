//! Who may ask the API, as it is configured.

use crate::api::auth::{Role, Token};
use crate::config::{Config, TokenRole};

/// The tokens of a configuration.
pub(super) fn tokens(config: &Config) -> Vec<Token> {
    let of = |token: &crate::config::TokenConfig| {
        Some(Token {
            name: token.name.clone(),
            // One without a hash is refused when the configuration is read.
            sha256: token.hash()?,
            projects: token.covered().map(|names| names.iter().cloned().collect()),
            role: match token.role {
                TokenRole::Read => Role::Read,
                TokenRole::Write => Role::Write,
                TokenRole::Admin => Role::Admin,
            },
        })
    };
    config.api.tokens.iter().filter_map(of).collect()
}

/// Says at the start who may ask without a token.
pub(super) fn warn_if_open(config: &Config) {
    if !config.api.tokens.is_empty() {
        return;
    }
    match config.http.filter(|http| !http.ip().to_canonical().is_loopback()) {
        Some(http) => tracing::warn!(
            %http,
            "no API token is configured: tasks and projects answer to this machine alone, timers to everybody"
        ),
        None => tracing::info!("no API token is configured: the API answers to this machine alone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TokenConfig;

    #[test]
    fn a_token_is_taken_over_with_its_role_and_its_projects() {
        let mut config = Config::default();
        let token = |role, projects: &[&str]| TokenConfig {
            name: "ci".to_owned(),
            sha256: "0f".repeat(32),
            projects: projects.iter().map(|one| (*one).to_owned()).collect(),
            role,
        };
        config.api.tokens = vec![token(TokenRole::Write, &["shop"]), token(TokenRole::Admin, &[])];
        let tokens = tokens(&config);
        assert_eq!(tokens[0].role, Role::Write);
        assert_eq!(tokens[0].projects, Some(["shop".to_owned()].into()));
        assert_eq!((tokens[1].role, &tokens[1].projects), (Role::Admin, &None));
        assert_eq!(tokens[0].sha256, [0x0f; 32]);
    }
}
