//! Programs that are shown in the guide.

/// Asserts that a block of code of a page, by its number, shows a whole program except for its header.
pub(crate) fn assert_shown(page: &str, block: usize, program: &str) {
    assert_eq!(shown(page, block), body(program), "the page and the example differ");
}

/// Returns the visible lines of a block of code on a page.
pub(crate) fn shown(page: &str, block: usize) -> String {
    let block = page.split("```").skip(1).step_by(2).nth(block).expect("the page has the block");
    let (language, code) = block.split_once('\n').expect("a language, and code");
    assert!(language.starts_with("rust"), "the block is in {language}");
    let is_hidden = |line: &&str| *line == "#" || line.starts_with("# ");
    let lines: Vec<_> = code.lines().filter(|line| !is_hidden(line)).collect();
    lines.join("\n").trim().to_owned()
}

/// Returns a program without its header.
fn body(program: &str) -> &str {
    let end = program.find("\n\n").expect("the header ends with an empty line");
    assert!(program.starts_with("//! "), "the program has a header");
    program[end..].trim()
}
