// Package registry decides who may speak for which worker: it discovers
// workers, finds out what their engines are and in which dialect each of them
// can be heard, asks engines to report (registration with a lease) or has them
// dialled, binds the streams of reports to workers, and admits reports by
// identity and sequence.
//
// Identity comes from discovery and from the connection, never from a message.
// The role of a stream stands only where neither discovery nor the engine's
// facts name one.
//
// Registry.Run reconciles: it turns the --worker flags, the workers file, the
// admin list, the lists of further sources and the facts of engines into one
// store.Discovery per change, and runs one loop per worker. A loop waits for nobody but its own engine, and the reconciler
// waits for no loop, so a slow engine delays no other worker. Streams come in
// from outside by Registry.Bind, and from dialers by Engine.Open; what they may
// do is decided under the lock of their worker alone.
//
// Sources win over each other in this order: flags, the workers file, the admin
// list, Options.Sources as they are given, and registration. Workers of two
// sources with one origin are one worker, which the source that wins names; what
// it leaves open, the others say. An id that two sources give to two origins is
// the winner's. A worker whose URL, role, dialect or UID becomes another is
// another worker, and so is one whose id does; all else changes in place, and so
// do the sources that list it. A source that fails keeps its last list, for
// ever. Discovery is complete once every source delivered a list; one that does
// not within a minute is not waited for any more.
//
// The addresses of guarded workers come from outside the plane's settings: those
// of the deny list of package egress are not dialled for them.
//
// A worker without a configured dialect is asked what it offers, and the offers
// are tried in order. The dialect of the stream that is bound is the one in
// force; it changes in place. A pushed stream always may bind to such a worker,
// and keeps its dialect in force until the engine is silent and refuses. An
// engine that is dialled in a less preferred dialect is asked again where the
// better ones gave no definite answer, and where it says something else of its
// reporters. What it offers by then is tried beside the dialect in use, which
// goes on until the other one is heard. A pushed stream is not given up so.
//
// A reporter may register an engine by itself: Registry.Register grants a lease,
// and Registry.BindLease binds the stream that speaks by it. A worker that no
// other source lists is added for as long as its lease lasts; of one that is
// listed, the listing stands. Nothing is ever sent to a worker that is there by
// its registration alone. The stream of a lease takes the turn of a worker whose
// dialect was left open, and keeps it while it is heard.
package registry
