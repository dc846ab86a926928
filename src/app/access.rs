//! Who may ask the API, as it is configured.

use std::sync::Arc;

use crate::api::auth::{Issuer, IssuerSettings, Principal, Role, Token};
use crate::api::tls::{ListenerSettings, TlsSettings};
use crate::config::{ClientAuth, Config, JwtConfig, PrincipalConfig, TokenRole};

/// The tokens of a configuration.
pub(super) fn tokens(config: &Config) -> Vec<Token> {
    let of = |token: &crate::config::TokenConfig| {
        Some(Token {
            name: token.name.clone(),
            // One without a hash is refused when the configuration is read.
            sha256: token.hash()?,
            projects: token.covered().map(|names| names.iter().cloned().collect()),
            role: role(token.role),
        })
    };
    config.api.tokens.iter().filter_map(of).collect()
}

fn role(of: TokenRole) -> Role {
    match of {
        TokenRole::Read => Role::Read,
        TokenRole::Write => Role::Write,
        TokenRole::Admin => Role::Admin,
    }
}

/// Who is known by a certificate.
pub(super) fn principals(config: &Config) -> Vec<Principal> {
    let of = |principal: &PrincipalConfig| {
        Some(Principal {
            name: principal.name.clone(),
            // One that is none is refused when the configuration is read.
            subject: principal.subject.parse().ok()?,
            projects: principal.covered().map(|names| names.iter().cloned().collect()),
            role: role(principal.role),
        })
    };
    config.api.tls.principals.iter().filter_map(of).collect()
}

/// Where certificates and keys stand.
pub(super) fn tls(config: &Config) -> TlsSettings {
    let (api, tls) = (&config.api, &config.api.tls);
    let listener = tls.certificate.clone().zip(tls.key.clone());
    TlsSettings {
        listener: listener.map(|(certificate, key)| ListenerSettings {
            certificate,
            key,
            client_ca: tls.client_ca.clone(),
            is_required: tls.client_auth == ClientAuth::Required,
        }),
        ca: api.ca.clone(),
        client: api.client_certificate.clone().zip(api.client_key.clone()),
    }
}

/// The issuer of a configuration: the one of before, with the keys that it has, if nothing is changed about it. To be called
/// inside of a tokio runtime.
pub(super) fn issuer(config: &Config, before: Option<Arc<Issuer>>) -> Option<Arc<Issuer>> {
    let settings = issuer_settings(&config.api.jwt)?;
    let before = before.filter(|issuer| *issuer.settings() == settings);
    Some(before.unwrap_or_else(|| Issuer::start(settings)))
}

/// `None`: no signed token is taken. One that is incomplete is refused when the configuration is read.
fn issuer_settings(jwt: &JwtConfig) -> Option<IssuerSettings> {
    Some(IssuerSettings {
        issuer: jwt.issuer.clone()?,
        audience: jwt.audience.clone()?,
        jwks: jwt.jwks.as_ref()?.parse().ok()?,
        projects_claim: jwt.projects_claim.clone(),
        role_claim: jwt.role_claim.clone(),
    })
}

/// Says at the start who may ask without a token or a certificate.
pub(super) fn warn_if_open(config: &Config) {
    if config.api.wants_credentials() {
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

    #[tokio::test]
    async fn an_issuer_keeps_its_keys_over_a_reload_that_does_not_change_it() {
        let mut config = Config::default();
        assert!(issuer(&config, None).is_none());
        let text = |text: &str| Some(text.to_owned());
        let jwks = text("http://127.0.0.1:1/keys");
        config.api.jwt =
            JwtConfig { issuer: text("us"), audience: text("you"), jwks, ..JwtConfig::default() };
        let first = issuer(&config, None).expect("an issuer");
        assert_eq!((&*first.settings().issuer, &*first.settings().role_claim), ("us", "role"));
        let same = issuer(&config, Some(Arc::clone(&first))).expect("an issuer");
        assert!(Arc::ptr_eq(&first, &same));
        config.api.jwt.audience = text("them");
        let other = issuer(&config, Some(Arc::clone(&first))).expect("an issuer");
        assert!(!Arc::ptr_eq(&first, &other) && other.settings().audience == "them");
        config.api.jwt = JwtConfig::default();
        assert!(issuer(&config, Some(other)).is_none());
    }
}
