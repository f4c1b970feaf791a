// Package explain says of one worker what holds and what does not, check by
// check, and what to do about it. Everything in it is a pure function of what is
// known: it reads no clock and asks nobody.
package explain
