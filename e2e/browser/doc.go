// Package browser holds tests that open the page of the plane in a real
// browser: against the built program with simulated engines, and against a
// plane in this process where a test needs thousands of workers or names that
// discovery would refuse. It has no code of its own. The browser is driven by
// driver.mjs, a program for Node that is told one step at a time.
//
// The tests skip where chromium, Node or what "npm ci --prefix e2e/browser"
// installs is missing, unless BROWSER is "required". CHROMIUM names another
// binary than /usr/bin/chromium. Pictures and measured times go to the folder
// that ARTIFACTS names, else to that of go test -artifacts.
package browser
