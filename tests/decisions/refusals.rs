//! Refusals as values that functions keep, send and return.

use std::error::Error as StdError;
use std::time::Duration;

use crate::scene::expect_refusal;
use shmlimit::{Declaration, Error, Limit, LimitSet, Refusal, Segment, SetDeclaration, Window};

type AnyError = Box<dyn StdError + Send + Sync>;

fn one_a_minute() -> (tempfile::TempDir, LimitSet) {
    let directory = tempfile::tempdir().expect("a directory");
    let limit = Limit::calls("sent", 1, Duration::from_secs(60));
    let declaration = Declaration::new().add_set(SetDeclaration::new("mail").add_limit(limit));
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let set = segment.set("mail").expect("declared");
    (directory, set)
}

fn send(mail: &LimitSet) -> Result<(), AnyError> {
    let mut permit = mail.request().try_acquire()?.into_result()?;
    permit.release()?;
    Ok(())
}

#[test]
fn a_refusal_and_a_failure_both_pass_through_a_question_mark_and_stay_apart() {
    let (_directory, mail) = one_a_minute();
    send(&mail).expect("the first of a minute");

    let refused = send(&mail).expect_err("the second of a minute");
    assert!(refused.downcast_ref::<Error>().is_none());
    let refusal = refused.downcast::<Refusal>().expect("a refusal");
    assert_eq!(refusal.binding(), Some("sent"));

    let ask_for_more = || -> Result<(), AnyError> {
        let two = mail.request().with("sent", 2)?;
        drop(two.try_acquire()?.into_result()?);
        Ok(())
    };
    let failed = ask_for_more().expect_err("never admissible");
    assert!(failed.downcast_ref::<Refusal>().is_none());
    assert!(failed.downcast_ref::<Error>().is_some());
}

#[test]
fn a_refusal_outlives_the_handle_of_the_set_and_is_read_by_another_thread() {
    fn assert_shareable<T: Clone + Send + Sync + StdError + 'static>(_: &T) {}
    let (_directory, mail) = one_a_minute();
    send(&mail).expect("the first of a minute");
    let request = mail.request();
    let refusal = expect_refusal(request.try_acquire());
    assert_shareable(&refusal);
    let copy = refusal.clone();
    drop(mail);

    let read = std::thread::spawn(move || {
        let verdicts: Vec<_> = refusal.verdicts().collect();
        assert_eq!((verdicts.len(), verdicts[0].limit), (1, "sent"));
        assert!(
            refusal
                .retry_after()
                .is_some_and(|wait| wait <= Duration::from_millis(60_001))
        );
        (refusal.set().name().to_owned(), refusal.to_string())
    });
    let (set, text) = read.join().expect("no panic");
    assert_eq!(set, "mail");
    assert_eq!(text, copy.to_string());
}

/// The debug form is what `main` prints if it returns one, and what `unwrap` prints.
#[test]
fn the_debug_form_of_refusals_and_errors_is_their_message() {
    let (_directory, mail) = one_a_minute();
    drop(mail.request().try_permit().expect("the first of a minute"));
    let refused = mail.request().try_permit().expect_err("the second");
    let refusal = refused.refusal().expect("not a failure");
    let failed = mail.request().with("nothing", 1).expect_err("no such limit");
    let declared = Declaration::from_toml("set = 3").expect_err("not a list");
    let parsed = "never".parse::<Window>().expect_err("no window");
    for (debug, message) in [
        (format!("{refused:?}"), refused.to_string()),
        (format!("{refusal:?}"), refused.to_string()),
        (format!("{failed:?}"), failed.to_string()),
        (format!("{declared:#?}"), declared.to_string()),
        (format!("{parsed:?}"), parsed.to_string()),
    ] {
        assert_eq!(debug, message);
    }
}

#[test]
fn checks_and_reservations_give_out_refusals_alike() {
    let (_directory, mail) = one_a_minute();
    let request = mail.request();
    request
        .check()
        .expect("works")
        .into_result()
        .expect("the first of a minute");

    let checked = request.check().expect("works").into_result();
    let reserved = request.reserve(Duration::ZERO).expect("works").into_result();
    for refusal in [checked.err(), reserved.err()] {
        assert_eq!(refusal.expect("the second of a minute").binding(), Some("sent"));
    }
}
