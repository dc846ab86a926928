use super::*;

#[test]
fn nothing_given_is_the_default() {
    let config = Config::load_from(None, [], Overrides::default());
    assert_eq!(config, Ok(Config::default()));
}
