//! What both layers consist of: an extractor and settings, which their services share.

/// Implements `Clone` and `Layer` for a layer and its kind of service.
macro_rules! shared_layer {
    ($layer:ident, $service:ident) => {
        // Not derived: the extractor is shared and need not be `Clone`.
        impl<E> Clone for $layer<E> {
            fn clone(&self) -> Self {
                Self {
                    extractor: ::std::sync::Arc::clone(&self.extractor),
                    settings: self.settings.clone(),
                }
            }
        }

        impl<S, E> ::tower_layer::Layer<S> for $layer<E> {
            type Service = $service<S, E>;

            fn layer(&self, service: S) -> Self::Service {
                let extractor = ::std::sync::Arc::clone(&self.extractor);
                $service::new(service, extractor, self.settings.clone())
            }
        }
    };
}

pub(super) use shared_layer;
