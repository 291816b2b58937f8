//! The native form of the engine; the Python package runs the same code from its extension.

fn main() {
    let args: Vec<String> = std::env::args().collect();
    std::process::exit(colibri::cli::run(&args));
}
