//! The state of the screen: page, order and selection, and how keys change them.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use shmlimit::Error;
use shmlimit::snapshot::{KeyFingerprint, KeySnapshot, SetSnapshot};

use super::signs::Signs;
use crate::live::activity::{KeyActivity, SetActivity};
use crate::live::sampler::{Look, Sampler};
use crate::text::key;

/// The current page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// All sets, each with its limits.
    Overview,
    /// A set, by name.
    Set(String),
    /// A key of a set.
    Key(String, KeyFingerprint),
    Processes,
}

/// The order of sets or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Declared,
    Admitted,
    Refused,
    Queued,
}

/// The current list of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Keys,
    Holders,
    Queue,
}

/// What a key press asks the program to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Quit,
    /// Look up what is shown now but has not been looked up yet.
    LookUp,
}

/// The screen.
#[derive(Debug)]
pub struct Screen {
    pub signs: Signs,
    look: Look,
    pages: Vec<Page>,
    order: Order,
    filter: String,
    is_typing: bool,
    is_paused: bool,
    list: List,
    selected: usize,
    /// The page's key, if it has a row.
    key: Option<KeySnapshot>,
}

impl Screen {
    pub fn new(look: Look, signs: Signs) -> Self {
        Self {
            signs,
            look,
            pages: vec![Page::Overview],
            order: Order::Declared,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            list: List::Keys,
            selected: 0,
            key: None,
        }
    }

    pub fn look(&self) -> &Look {
        &self.look
    }

    pub fn page(&self) -> &Page {
        self.pages.last().unwrap_or(&Page::Overview)
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub fn key(&self) -> Option<&KeySnapshot> {
        self.key.as_ref()
    }

    pub fn filter(&self) -> &str {
        &self.filter
    }

    /// The filter, while it is typed.
    pub fn typed_filter(&self) -> Option<&str> {
        self.is_typing.then_some(self.filter.as_str())
    }

    /// The order and filter of the list, in words. Empty if the list is complete and in declared order.
    pub fn arrangement(&self) -> String {
        let mut text = String::new();
        if self.order != Order::Declared && !matches!(self.page(), Page::Processes | Page::Key(..)) {
            text.push_str(&format!("  by {}", self.order.words()));
        }
        if !self.filter.is_empty() && !self.is_typing {
            text.push_str(&format!(
                "  with \"{}\"",
                crate::text::sanitise::line(&self.filter)
            ));
        }
        text
    }

    /// Takes in a new look, unless the screen is paused.
    pub fn update(&mut self, look: Look, sampler: &Sampler) -> Result<(), Error> {
        if self.is_paused {
            return Ok(());
        }
        self.look = look;
        self.look_up(sampler)
    }

    /// Looks up the page's key.
    pub fn look_up(&mut self, sampler: &Sampler) -> Result<(), Error> {
        self.key = match self.page() {
            Page::Key(set, fingerprint) => sampler.key(set, *fingerprint)?,
            _ => None,
        };
        Ok(())
    }

    /// The page's set, if it still exists.
    pub fn set(&self) -> Option<(&SetSnapshot, &SetActivity)> {
        let name = match self.page() {
            Page::Set(name) | Page::Key(name, _) => name,
            Page::Overview | Page::Processes => return None,
        };
        self.look.sets().find(|(set, _)| set.name == *name)
    }

    /// The sets that pass the filter, in order.
    pub fn sets(&self) -> Vec<(&SetSnapshot, &SetActivity)> {
        let sets = self.look.sets().filter(|(set, _)| self.has(&set.name));
        let mut sets: Vec<_> = sets.collect();
        let rank = |(set, activity): &(&SetSnapshot, &SetActivity)| match self.order {
            Order::Declared => 0.0,
            Order::Admitted => activity.rates.unwrap_or_default().admitted,
            Order::Refused => activity.rates.unwrap_or_default().refused,
            Order::Queued => set.queued() as f64,
        };
        // The sort is stable, so that sets of equal rank stay in declared order.
        sets.sort_by(|one, other| rank(other).total_cmp(&rank(one)));
        sets
    }

    /// The hottest keys of the page's set that pass the filter, in order.
    pub fn keys(&self) -> Vec<&KeyActivity> {
        let Some((_, activity)) = self.set() else {
            return Vec::new();
        };
        let keys = activity
            .hottest
            .iter()
            .filter(|hot| self.has(&key::key(&hot.key)));
        let mut keys: Vec<_> = keys.collect();
        let rank = |hot: &&KeyActivity| match self.order {
            Order::Declared => 0.0,
            Order::Admitted => hot.rates.unwrap_or_default().admitted,
            Order::Refused => hot.rates.unwrap_or_default().refused,
            Order::Queued => hot.queued as f64,
        };
        keys.sort_by(|one, other| rank(other).total_cmp(&rank(one)));
        keys
    }

    /// Whether the filter lets a text through.
    pub fn has(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// The current list of the page's set. The list of keys only exists if the set has keys.
    pub fn list(&self) -> List {
        let is_keyed = self.set().is_some_and(|(set, _)| set.keys.is_some());
        if self.list == List::Keys && !is_keyed {
            List::Holders
        } else {
            self.list
        }
    }

    /// Keeps the selection within a list of `lines` lines, and returns it.
    pub fn select_among(&mut self, lines: usize) -> Option<usize> {
        self.selected = self.selected.min(lines.saturating_sub(1));
        (lines > 0).then_some(self.selected)
    }

    /// Handles a key press.
    pub fn press(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL)
            && matches!(key.code, KeyCode::Char('c' | 'C' | 'd' | 'D'));
        if is_interrupt {
            return Wish::Quit;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q' | 'Q') => return Wish::Quit,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = self.selected.saturating_add(1),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::PageDown => self.selected = self.selected.saturating_add(10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = usize::MAX,
            KeyCode::Enter | KeyCode::Right => return self.open(),
            KeyCode::Tab => return self.turn(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.go_back(),
            _ => {}
        }
        Wish::Nothing
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) => self.filter.push(character),
            _ => {}
        }
    }

    /// Opens the selected item.
    fn open(&mut self) -> Wish {
        let page = match self.page() {
            Page::Overview => {
                let sets = self.sets();
                sets.get(self.selected)
                    .map(|(set, _)| Page::Set(set.name.clone()))
            }
            Page::Set(set) => {
                let key = self.selected_key();
                key.map(|key| Page::Key(set.clone(), key))
            }
            Page::Key(..) | Page::Processes => None,
        };
        match page {
            Some(page) => self.show(page),
            None => Wish::Nothing,
        }
    }

    /// The key of the selected line in a list of a set.
    fn selected_key(&self) -> Option<KeyFingerprint> {
        let (set, _) = self.set()?;
        let label = match self.list() {
            List::Keys => self.keys().get(self.selected).map(|hot| &hot.key),
            List::Holders | List::Queue => self.users(set).get(self.selected).and_then(|user| user.key),
        };
        label.map(|label| label.fingerprint)
    }

    /// Switches to the next list, or between sets and processes.
    fn turn(&mut self) -> Wish {
        match self.page() {
            Page::Overview => return self.show(Page::Processes),
            Page::Processes => self.go_back(),
            Page::Set(_) => {
                self.list = match self.list() {
                    List::Keys => List::Holders,
                    List::Holders => List::Queue,
                    List::Queue => List::Keys,
                };
                self.selected = 0;
            }
            Page::Key(..) => {}
        }
        Wish::Nothing
    }

    fn show(&mut self, page: Page) -> Wish {
        self.pages.push(page);
        self.selected = 0;
        self.filter.clear();
        Wish::LookUp
    }

    fn go_back(&mut self) {
        if self.pages.len() > 1 {
            self.pages.pop();
            self.selected = 0;
        }
        self.filter.clear();
    }
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Declared => Self::Admitted,
            Self::Admitted => Self::Refused,
            Self::Refused => Self::Queued,
            Self::Queued => Self::Declared,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Declared => "declaration",
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Queued => "queued",
        }
    }
}
